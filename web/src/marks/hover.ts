/** What lies under the pointer, in words and numbers. */

import type { Bars, Heat, Plot, Theme, Value } from "../lib/chart";
import { formatValue } from "../lib/scales";
import { smoothed } from "../lib/smoothing";
import type { Frame, Ruler } from "./frame";
import { cellAt, heatColour } from "./heat";
import { ofKind, toneColour, type Drawn } from "./series";

export interface Row {
  colour: string;
  label: string;
  text: string;
  /** Said more quietly: the average, or where the value was really taken. */
  aside?: string;
}

/** A point that is shown as a dot. */
export interface Dot {
  x: number;
  y: number;
  colour: string;
}

export interface Hover {
  heading: string;
  rows: Row[];
  dots: Dot[];
  /** Where the values were taken, in pixels. */
  x: number;
}

/** How far from the pointer, in pixels, a point may lie. */
const REACH = 40;

/** Say what is at a point of the canvas; null where there is nothing. */
export function hoverAt(
  frame: Frame,
  plot: Plot,
  all: readonly Drawn[],
  theme: Theme,
  x: number,
  y: number,
  smoothing = 0,
): Hover | null {
  const heat = plot.marks.find((mark) => mark.kind === "heat");
  const found = heat
    ? overHeat(frame, heat, x, y, theme)
    : overSeries(frame, plot, all, theme, x, y, smoothing);
  const happened = plot.marks.flatMap((mark) =>
    mark.kind === "ticks"
      ? mark.at.flatMap((at, index) =>
          Math.abs(frame.x.at(at) - x) <= 6
            ? [{ colour: toneColour(mark.tone, theme), label: mark.label, text: mark.texts[index] ?? "" }]
            : [],
        )
      : [],
  );
  if (!found && !happened.length) return null;
  const shown = found ?? { heading: headingOf(frame.x, frame.x.value(x)), rows: [], dots: [], x };
  // Hundreds of steps may lie under one pixel.
  const rest =
    happened.length > 4 ? [{ colour: "", label: "", text: `and ${happened.length - 4} more` }] : [];
  return { ...shown, rows: [...shown.rows, ...happened.slice(0, 4), ...rest] };
}

function overSeries(
  frame: Frame,
  plot: Plot,
  all: readonly Drawn[],
  theme: Theme,
  x: number,
  y: number,
  smoothing: number,
): Hover | null {
  const rows: Row[] = [];
  const dots: Dot[] = [];
  let place = x;
  let heading = "";
  const lines = ofKind(all, "line");
  // The line nearest to the pointer says which x is meant; the others are read there.
  const distance = (line: (typeof lines)[number]) => {
    const index = nearest(line.mark.x, frame.x, x);
    return index < 0 ? Infinity : Math.abs(frame.x.at(line.mark.x[index]!) - x);
  };
  const leader = lines.filter((line) => distance(line) <= REACH).sort((a, b) => distance(a) - distance(b))[0];
  const at = leader ? leader.mark.x[nearest(leader.mark.x, frame.x, x)]! : null;
  if (at !== null) {
    place = frame.x.at(at);
    heading = headingOf(frame.x, at);
  }
  for (const { mark, colour, run } of leader ? lines : []) {
    const index = nearest(mark.x, frame.x, place);
    if (index < 0 || Math.abs(frame.x.at(mark.x[index]!) - place) > REACH) continue;
    const value = mark.y[index] ?? null;
    const average = mark.smooth && smoothing > 0 ? smoothed(mark.x, mark.y, smoothing)[index] : null;
    const asides = [
      ...(typeof average === "number" ? [`average ${formatValue(average)}`] : []),
      ...(mark.x[index] === at ? [] : [`at ${headingOf(frame.x, mark.x[index]!)}`]),
    ];
    rows.push({ colour, label: named(run, mark.label), text: formatValue(value), aside: asides.join(", ") });
    const height = (mark.right && frame.right ? frame.right : frame.y).at(value);
    if (!Number.isNaN(height)) dots.push({ x: frame.x.at(mark.x[index]!), y: height, colour });
  }
  for (const { mark, colour, run } of ofKind(all, "band")) {
    const index = nearest(mark.x, frame.x, place);
    if (index < 0 || Math.abs(frame.x.at(mark.x[index]!) - place) > REACH) continue;
    const text = `${formatValue(mark.low[index])} to ${formatValue(mark.high[index])}`;
    rows.push({ colour, label: named(run, mark.label), text });
  }
  for (const { mark, colour, run } of ofKind(all, "bars")) {
    const text = overBars(frame, mark, mark.flat ? y : x);
    if (text) rows.push({ colour, label: named(run, mark.label), text });
  }
  for (const { mark, colour, run } of ofKind(all, "disc")) {
    rows.push({ colour, label: named(run, mark.label), text: `radius ${formatValue(mark.radius)}` });
  }
  for (const { mark, colour, run } of ofKind(all, "zone")) {
    const pointed = mark.axis === "x" ? frame.x.value(x) : frame.y.value(y);
    if (!mark.label || pointed < (mark.low ?? -Infinity) || pointed > (mark.high ?? Infinity)) continue;
    const text = `${formatValue(mark.low)} to ${formatValue(mark.high)}`;
    rows.push({ colour, label: named(run, mark.label), text });
  }
  if (!rows.length) return null;
  for (const mark of plot.marks) {
    if (mark.kind === "guide" && mark.axis === "y" && mark.label && rows.length < 8) {
      rows.push({ colour: toneColour(mark.tone, theme), label: mark.label, text: formatValue(mark.at) });
    }
  }
  return { heading, rows, dots, x: place };
}

function named(run: string, label: string): string {
  return run ? `${run} · ${label}` : label;
}

/** "0.1 to 0.2: 35" for the bar at this pixel; "" where there is none. */
function overBars(frame: Frame, bars: Bars, pixel: number): string {
  const ruler = bars.flat ? frame.y : frame.x;
  const cell = cellAt(bars.edges, ruler.value(pixel));
  if (cell < 0 || cell >= bars.heights.length) return "";
  return `${cellName(ruler, bars.edges, cell)}: ${formatValue(bars.heights[cell])}`;
}

function overHeat(frame: Frame, heat: Heat, x: number, y: number, theme: Theme): Hover | null {
  const column = cellAt(heat.x, frame.x.value(x));
  const row = cellAt(heat.y, frame.y.value(y));
  const value = heat.values[row]?.[column];
  if (value === undefined) return null;
  const rows = [
    { colour: "", label: axisName(frame.x, "x"), text: cellName(frame.x, heat.x, column) },
    { colour: "", label: axisName(frame.y, "y"), text: cellName(frame.y, heat.y, row) },
    {
      colour: heatColour(heat, value, theme),
      label: heat.label,
      text: value === null ? "none" : formatValue(value),
    },
  ];
  return { heading: "", rows, dots: [], x };
}

function axisName({ axis }: Ruler, otherwise: string): string {
  return axis.label || (axis.names.length ? "layer" : otherwise);
}

/** A cell by its name, its step, or its two edges. */
function cellName(ruler: Ruler, edges: readonly Value[], cell: number): string {
  const [low, high] = [edges[cell] ?? null, edges[cell + 1] ?? null];
  if (low === null || high === null) return "";
  const name = ruler.axis.names[Math.floor((low + high) / 2)];
  if (name !== undefined) return name;
  if (ruler.axis.steps) {
    const [first, last] = [Math.ceil(low), Math.ceil(high) - 1];
    return last > first ? `${formatValue(first)} to ${formatValue(last)}` : formatValue(first);
  }
  return `${formatValue(low)} to ${formatValue(high)}`;
}

function headingOf(ruler: Ruler, value: number): string {
  const name = ruler.axis.names[Math.floor(value)];
  if (name !== undefined) return name;
  if (ruler.axis.steps) return `step ${formatValue(Math.round(value))}`;
  return ruler.axis.label ? `${ruler.axis.label} ${formatValue(value)}` : formatValue(value);
}

/** The index of the x that lies nearest to a pixel; −1 if there is none. Values grow, gaps in x are skipped. */
export function nearest(x: readonly Value[], ruler: Pick<Ruler, "at" | "value">, pixel: number): number {
  const after = cellAt(x, ruler.value(pixel));
  let best = -1;
  let least = Infinity;
  for (let index = Math.max(0, after - 1); index <= Math.min(x.length - 1, after + 2); index++) {
    const distance = Math.abs(ruler.at(x[index] ?? null) - pixel);
    if (distance < least) [best, least] = [index, distance];
  }
  return best;
}
