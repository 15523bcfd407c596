/** Charts to take along: as a picture, and as a table. */

import type { Chart, Mark, Value } from "../lib/chart";

/** A picture of everything drawn inside an element, as PNG, with the pixels of the screen. */
export async function toPng(element: HTMLElement): Promise<Blob> {
  const ratio = window.devicePixelRatio || 1;
  const frame = element.getBoundingClientRect();
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(frame.width * ratio);
  canvas.height = Math.round(frame.height * ratio);
  const context = canvas.getContext("2d");
  if (!context) throw new Error("This browser offers no canvas to draw on.");
  context.scale(ratio, ratio);
  context.fillStyle = ground(element);
  context.fillRect(0, 0, frame.width, frame.height);
  context.translate(-frame.left, -frame.top);
  for (const plot of element.querySelectorAll<HTMLElement>("[data-plot]")) copy(plot, context);
  return new Promise((resolve, reject) => {
    canvas.toBlob(
      (blob) => (blob ? resolve(blob) : reject(new Error("The picture could not be made."))),
      "image/png",
    );
  });
}

/** The first colour behind an element. */
function ground(element: Element | null): string {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour && colour !== "transparent" && !/,\s*0\)$/.test(colour)) return colour;
  }
  return "#ffffff";
}

/** Draw canvases, coloured boxes and texts where the page shows them. */
function copy(node: Element, context: CanvasRenderingContext2D): void {
  const box = node.getBoundingClientRect();
  if (node instanceof HTMLCanvasElement) {
    if (node.width && node.height) context.drawImage(node, box.left, box.top, box.width, box.height);
    return;
  }
  const style = getComputedStyle(node);
  const colours = style.backgroundImage.match(/rgb\([^)]*\)/g);
  if (colours && style.backgroundImage.startsWith("linear-gradient")) {
    const fill = context.createLinearGradient(box.left, 0, box.right, 0);
    colours.forEach((colour, index) => fill.addColorStop(index / Math.max(1, colours.length - 1), colour));
    context.fillStyle = fill;
    context.fillRect(box.left, box.top, box.width, box.height);
  } else if (!/^transparent$|,\s*0\)$/.test(style.backgroundColor)) {
    context.globalAlpha = Number(style.opacity);
    context.fillStyle = style.backgroundColor;
    context.fillRect(box.left, box.top, box.width, box.height);
    context.globalAlpha = 1;
  }
  for (const child of node.childNodes) {
    if (child instanceof Element) copy(child, context);
    else if (child.textContent?.trim()) {
      context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
      context.fillStyle = style.color;
      context.textBaseline = "middle";
      context.fillText(child.textContent.trim(), box.left, box.top + box.height / 2, box.width + 1);
    }
  }
}

const COLUMNS = ["plot", "kind", "label", "x", "x_end", "y", "y_end", "value", "text"] as const;
type Cells = Partial<Record<(typeof COLUMNS)[number], Value | string | undefined>>;

/** All numbers of a chart as CSV: one row for every point, bar and cell. */
export function toCsv(chart: Chart): string {
  const rows = chart.plots.flatMap((plot, index) =>
    plot.marks.flatMap((mark) => cells(mark).map((row) => ({ plot: `${index + 1} ${plot.place}`, ...row }))),
  );
  const lines = rows.map((row: Cells) => COLUMNS.map((column) => field(row[column])).join(","));
  return [COLUMNS.join(","), ...lines, ""].join("\r\n");
}

function cells(mark: Mark): Cells[] {
  const base = { kind: mark.kind, label: mark.label };
  switch (mark.kind) {
    case "line":
      return mark.x.map((x, index) => ({ ...base, x, y: mark.y[index] }));
    case "band":
      return mark.x.map((x, index) => ({ ...base, x, y: mark.low[index], y_end: mark.high[index] }));
    case "bars":
      return mark.heights.map((value, index) => {
        const [from, to] = [mark.edges[index], mark.edges[index + 1]];
        return mark.flat ? { ...base, y: from, y_end: to, value } : { ...base, x: from, x_end: to, value };
      });
    case "heat":
      return mark.values.flatMap((row, line) =>
        row.map((value, column) => ({
          ...base,
          x: mark.x[column],
          x_end: mark.x[column + 1],
          y: mark.y[line],
          y_end: mark.y[line + 1],
          value,
        })),
      );
    case "guide":
      return [{ ...base, [mark.axis]: mark.at }];
    case "zone":
      return [{ ...base, [mark.axis]: mark.low, [`${mark.axis}_end`]: mark.high }];
    case "disc":
      return [{ ...base, value: mark.radius }];
    case "ticks":
      return mark.at.map((x, index) => ({ ...base, x, text: mark.texts[index] }));
  }
}

/** A field of a table; texts that a spreadsheet would run as a formula get an apostrophe before them. */
function field(value: Value | string | undefined): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const harmless = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}
