/** Paints areas, guides, and the marks that say that something happened. */

import type { Guide, Plot } from "../lib/chart";
import { faded, palettes } from "../lib/palette";
import { formatValue } from "../lib/scales";
import { horizontal, vertical, type Context, type Ink } from "./axes";
import type { Frame } from "./frame";
import { besideColumns, besideRows, LABEL_HEIGHT, type Wanted } from "./labels";
import { toneColour, type Drawn, ofKind } from "./series";

/** Everything below is painted inside the box only. */
export function clipped(context: Context, { box }: Frame, paint: () => void): void {
  context.save();
  context.beginPath();
  context.rect(box.left, box.top, box.width, box.height);
  context.clip();
  paint();
  context.restore();
}

/** Paint strips across the plot. */
export function paintZones(context: Context, frame: Frame, all: readonly Drawn[]): void {
  const { box, x, y } = frame;
  for (const { mark, colour, other } of ofKind(all, "zone")) {
    const ruler = mark.axis === "x" ? x : y;
    const [one, two] = [ruler.at(mark.low), ruler.at(mark.high)].map((at, index) =>
      Number.isNaN(at) ? ruler.at(ruler.map.backward(index ? ruler.high : ruler.low)) : at,
    ) as [number, number];
    const [from, size] = [Math.min(one, two), Math.max(1, Math.abs(two - one))];
    const area: [number, number, number, number] =
      mark.axis === "x" ? [from, box.top, size, box.height] : [box.left, from, box.width, size];
    context.fillStyle = faded(colour, other ? 0.08 : 0.2);
    context.fillRect(...area);
    context.strokeStyle = faded(colour, 0.75);
    context.lineWidth = 1;
    context.beginPath();
    for (const at of [from, from + size]) {
      if (mark.axis === "x") vertical(context, at, box.top, box.top + box.height);
      else horizontal(context, at, box.left, box.left + box.width);
    }
    context.stroke();
  }
}

/** Paint areas between two curves; they end at gaps. */
export function paintBands(context: Context, { x, y }: Frame, all: readonly Drawn[]): void {
  for (const { mark, colour, other } of ofKind(all, "band")) {
    context.fillStyle = faded(colour, other ? 0.1 : 0.2);
    let open: [number, number, number][] = [];
    const close = () => {
      context.beginPath();
      for (const [at, , high] of open) context.lineTo(at, high);
      for (const [at, low] of open.reverse()) context.lineTo(at, low);
      context.fill();
      open = [];
    };
    mark.x.forEach((at, index) => {
      const point: [number, number, number] = [
        x.at(at),
        y.at(mark.low[index] ?? null),
        y.at(mark.high[index] ?? null),
      ];
      if (point.some(Number.isNaN)) close();
      else open.push(point);
    });
    close();
  }
}

/** Paint guides, and their labels where no other label stands; one outside of the plot becomes an arrow at its edge. */
export function paintGuides(context: Context, frame: Frame, plot: Plot, ink: Ink): void {
  const { box, x, y } = frame;
  const [right, bottom] = [box.left + box.width, box.top + box.height];
  const rows: Wanted[] = [];
  const columns: Wanted[] = [];
  context.save();
  context.font = ink.font;
  context.setLineDash([4, 4]);
  context.lineWidth = 1;
  for (const guide of plot.marks.filter((mark): mark is Guide => mark.kind === "guide")) {
    const colour = toneColour(guide.tone, ink.theme);
    const at = (guide.axis === "x" ? x : y).at(guide.at);
    if (Number.isNaN(at)) continue;
    const before = guide.axis === "x" ? at < box.left - 0.5 : at < box.top - 0.5;
    const after = guide.axis === "x" ? at > right + 0.5 : at > bottom + 0.5;
    let text = guide.label;
    if (before || after) {
      if (!guide.label) continue;
      const arrow = guide.axis === "x" ? (before ? "←" : "→") : before ? "↑" : "↓";
      const number = formatValue(guide.at);
      text = `${arrow} ${guide.label}${guide.label.includes(number) ? "" : ` (${number})`}`;
    } else {
      context.strokeStyle = faded(colour, 0.8);
      context.beginPath();
      if (guide.axis === "x") vertical(context, at, box.top, bottom);
      else horizontal(context, at, box.left, right);
      context.stroke();
    }
    if (!text) continue;
    const wanted = { text, colour, width: context.measureText(text).width, at };
    if (guide.axis === "x") columns.push({ ...wanted, at: Math.min(Math.max(at, box.left), right) });
    else rows.push({ ...wanted, at: Math.min(Math.max(at, box.top), bottom) });
  }
  context.setLineDash([]);
  context.textBaseline = "middle";
  context.textAlign = "left";
  const atTop = besideColumns(columns, box.left, right, box.top);
  const widest = Math.max(0, ...rows.map(({ width }) => width));
  // Labels of rows begin below those of columns that reach into their corner.
  const corner = atTop.filter(
    (label) => label.x + context.measureText(label.text).width > right - widest - 10,
  );
  const top = Math.max(box.top, ...corner.map((label) => label.y + LABEL_HEIGHT / 2));
  for (const label of [...besideRows(rows, right, top, bottom), ...atTop]) {
    // A patch of the ground's colour keeps labels legible above lines.
    context.fillStyle = faded(palettes[ink.theme].panel, 0.78);
    context.fillRect(label.x - 2, label.y - 6, context.measureText(label.text).width + 4, 12);
    context.fillStyle = label.colour;
    context.fillText(label.text, label.x, label.y);
  }
  context.restore();
}

/** Paint a small triangle on the x axis wherever something happened. */
export function paintTicks(context: Context, { box, x }: Frame, plot: Plot, ink: Ink): void {
  const base = box.top + box.height;
  for (const mark of plot.marks) {
    if (mark.kind !== "ticks") continue;
    context.fillStyle = toneColour(mark.tone, ink.theme);
    context.beginPath();
    for (const value of mark.at) {
      const at = x.at(value);
      if (!(at >= box.left - 0.5 && at <= box.left + box.width + 0.5)) continue;
      context.moveTo(at, base - 7);
      context.lineTo(at + 4, base);
      context.lineTo(at - 4, base);
      context.closePath();
    }
    context.fill();
  }
}

/** Say why nothing is to be seen. */
export function paintEmpty(context: Context, { box, empty }: Frame, ink: Ink): void {
  // Narrow plots beside others leave it to those.
  if (!empty || box.height < 50 || box.width < 90) return;
  context.save();
  context.font = ink.font;
  context.fillStyle = palettes[ink.theme].text;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(empty, box.left + box.width / 2, box.top + box.height / 2);
  context.restore();
}
