/** Paints heat maps pixel by pixel, so that cells may be of any width and axes of any scale. */

import type { Heat, Theme, Value } from "../lib/chart";
import { ramp, rampColour } from "../lib/palette";
import type { Frame, Ruler } from "./frame";
import type { Context } from "./axes";

/** The smallest and the largest value that has a colour; null if none has. */
export function heatRange(heat: Heat): [number, number] | null {
  let low = Infinity;
  let high = -Infinity;
  for (const row of heat.values) {
    for (const value of row) {
      if (value === null || (heat.scale === "log" && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

/** The colour of a value of a heat map; "" where it has none. */
export function heatColour(heat: Heat, value: Value, theme: Theme): string {
  const range = heatRange(heat);
  if (!range || value === null || (heat.scale === "log" && value <= 0)) return "";
  const place = heat.scale === "log" ? Math.log10 : (number: number) => number;
  const [low, high] = [place(range[0]), place(range[1])];
  return rampColour(high > low ? (place(value) - low) / (high - low) : 1, theme);
}

/** For every pixel the first cell and the one after the last cell that it touches; equal where there is none. */
export function cellsOf(
  edges: readonly Value[],
  pixels: number,
  value: (pixel: number) => number,
): Int32Array {
  const found = new Int32Array(2 * pixels);
  const known = edges as readonly number[];
  for (let pixel = 0; pixel < pixels; pixel++) {
    const [one, two] = [value(pixel + 0.02), value(pixel + 0.98)];
    const [low, high] = one < two ? [one, two] : [two, one];
    const middle = value(pixel + 0.5);
    if (!(middle >= known[0]! && middle <= known[known.length - 1]!)) continue;
    const at = (place: number) => Math.min(Math.max(cellAt(known, place), 0), known.length - 2);
    // A pixel that several cells share shows them all; one on an edge shows the cell of its middle.
    const [first, last] = [at(low), at(high)];
    const shared = last - first > 1;
    found[2 * pixel] = shared ? first : at(middle);
    found[2 * pixel + 1] = (shared ? last : at(middle)) + 1;
  }
  return found;
}

/** The index of the cell between whose edges a value lies; −1 before the first edge. */
export function cellAt(edges: readonly Value[], value: number): number {
  let [low, high] = [0, edges.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((edges[middle] ?? Infinity) <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Red, green, blue and opacity of every pixel, rows from the top. */
export function heatPixels(
  heat: Heat,
  columns: Int32Array,
  rows: Int32Array,
  theme: Theme,
  pixels = new Uint8ClampedArray(columns.length * rows.length),
): Uint8ClampedArray {
  const range = heatRange(heat);
  if (!range) return pixels;
  const colours = ramp(theme);
  const place = heat.scale === "log" ? Math.log10 : (value: number) => value;
  const low = place(range[0]);
  const scale = 255 / (place(range[1]) - low || 1);
  const flat = range[0] === range[1];
  const width = columns.length / 2;
  for (let y = 0; y < rows.length / 2; y++) {
    const [top, bottom] = [rows[2 * y]!, rows[2 * y + 1]!];
    if (y > 0 && top === rows[2 * y - 2] && bottom === rows[2 * y - 1]) {
      pixels.copyWithin(4 * width * y, 4 * width * (y - 1), 4 * width * y);
      continue;
    }
    for (let x = 0; x < width; x++) {
      let most = -Infinity;
      for (let row = top; row < bottom; row++) {
        const values = heat.values[row]!;
        for (let column = columns[2 * x]!; column < columns[2 * x + 1]!; column++) {
          const value = values[column] ?? null;
          if (value !== null && value > most) most = value;
        }
      }
      if (most === -Infinity || (heat.scale === "log" && most <= 0)) continue;
      const colour = 3 * (flat ? 255 : Math.round((place(most) - low) * scale));
      const at = 4 * (width * y + x);
      pixels[at] = colours[colour]!;
      pixels[at + 1] = colours[colour + 1]!;
      pixels[at + 2] = colours[colour + 2]!;
      pixels[at + 3] = 255;
    }
  }
  return pixels;
}

/** Paint a heat map into the box, in device pixels. */
export function paintHeat(context: Context, frame: Frame, heat: Heat, theme: Theme, ratio: number): void {
  const { box } = frame;
  const [left, top] = [Math.round(box.left * ratio), Math.round(box.top * ratio)];
  const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  const cells = (ruler: Ruler, edges: Value[], start: number, size: number) =>
    cellsOf(edges, size, (pixel) => ruler.value((start + pixel) / ratio));
  const image = context.createImageData(width, height);
  heatPixels(
    heat,
    cells(frame.x, heat.x, left, width),
    cells(frame.y, heat.y, top, height),
    theme,
    image.data,
  );
  // A second canvas, because putImageData would wipe out what is already painted below.
  const sheet = document.createElement("canvas");
  sheet.width = width;
  sheet.height = height;
  sheet.getContext("2d")?.putImageData(image, 0, 0);
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.drawImage(sheet, left, top);
  context.restore();
}
