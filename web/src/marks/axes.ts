/** Paints the axes of a plot: grid, tick labels, names. */

import type { Theme } from "../lib/chart";
import { palettes } from "../lib/palette";
import type { Frame, Ruler } from "./frame";
import { LABEL_HEIGHT } from "./labels";

export type Context = CanvasRenderingContext2D;

export interface Ink {
  theme: Theme;
  /** Font of labels, as CSS writes it. */
  font: string;
  /** Tick labels that are left out. */
  bare?: { x?: boolean; y?: boolean };
}

/** Paint grid, tick labels and the label of the x axis. */
export function paintAxes(context: Context, frame: Frame, ink: Ink): void {
  const { box, x, y, right } = frame;
  const colours = palettes[ink.theme];
  context.save();
  context.font = ink.font;
  context.lineWidth = 1;
  context.strokeStyle = colours.grid;
  context.beginPath();
  for (const tick of x.axis.names.length ? [] : x.ticks)
    vertical(context, x.at(tick.at), box.top, box.top + box.height);
  for (const tick of y.axis.names.length ? [] : y.ticks) {
    horizontal(context, y.at(tick.at), box.left, box.left + box.width);
  }
  context.stroke();
  context.strokeStyle = colours.rule;
  context.beginPath();
  horizontal(context, box.top + box.height, box.left, box.left + box.width);
  context.stroke();
  context.fillStyle = colours.text;
  context.textBaseline = "middle";
  if (!ink.bare?.y) {
    context.textAlign = "right";
    paintColumn(context, y, box.left - 6, box.left - 8);
  }
  if (right) {
    context.textAlign = "left";
    paintColumn(context, right, box.left + box.width + 6, frame.width - box.left - box.width - 6);
  }
  if (!ink.bare?.x) paintRow(context, frame);
  context.restore();
}

/** Tick labels one above the other; names that do not fit are shortened in their middle, or left out in turn. */
function paintColumn(context: Context, ruler: Ruler, x: number, room: number): void {
  const pitch =
    ruler.ticks.length > 1 ? Math.abs(ruler.at(ruler.ticks[1]!.at) - ruler.at(ruler.ticks[0]!.at)) : 99;
  const stride = ruler.axis.names.length ? Math.max(1, Math.ceil((LABEL_HEIGHT - 1) / pitch)) : 1;
  ruler.ticks.forEach((tick, index) => {
    if (index % stride === 0) context.fillText(shortened(context, tick.label, room), x, ruler.at(tick.at));
  });
}

function paintRow(context: Context, { box, x, height, width }: Frame): void {
  const base = box.top + box.height;
  const { label, steps, names } = x.axis;
  if (names.length) {
    const pitch = box.width / names.length;
    const stride = Math.max(1, Math.ceil(12 / pitch));
    context.textAlign = "right";
    x.ticks.forEach((tick, index) => {
      if (index % stride) return;
      context.save();
      context.translate(x.at(tick.at), base + 6);
      context.rotate(-Math.PI / 2);
      context.fillText(shortened(context, tick.label, height - base - 8), 0, 0);
      context.restore();
    });
    return;
  }
  // A step axis needs no line of its own for its name: it stands at the end of the numbers.
  const name = steps && label ? context.measureText(label).width : 0;
  const end = name ? box.left + box.width - name - 10 : width;
  for (const tick of x.ticks) {
    const half = context.measureText(tick.label).width / 2;
    const at = Math.min(Math.max(x.at(tick.at), half + 1), width - half - 1);
    if (at + half > end) continue;
    context.textAlign = "center";
    context.fillText(tick.label, at, base + 11);
  }
  if (!label) return;
  context.textAlign = steps ? "right" : "center";
  context.fillText(label, steps ? box.left + box.width : box.left + box.width / 2, base + (steps ? 11 : 25));
}

/** The text, or its two ends around an ellipsis: a layer's name tells its block first and its part last. */
export function shortened(context: Context, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  for (let kept = text.length - 1; kept > 1; kept--) {
    const head = Math.floor(kept / 2);
    const rest = `${text.slice(0, head)}…${text.slice(text.length - kept + head)}`;
    if (context.measureText(rest).width <= room) return rest;
  }
  return "";
}

/** Add a horizontal line to the path, on whole pixels. */
export function horizontal(context: Context, y: number, from: number, to: number): void {
  const at = Math.round(y) + 0.5;
  context.moveTo(from, at);
  context.lineTo(to, at);
}

/** Add a vertical line to the path, on whole pixels. */
export function vertical(context: Context, x: number, from: number, to: number): void {
  const at = Math.round(x) + 0.5;
  context.moveTo(at, from);
  context.lineTo(at, to);
}
