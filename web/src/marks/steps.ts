/** Lines over steps as uPlot wants them: one column of x for all, values already on a straight scale. */

import uPlot from "uplot";

import type { Value } from "../lib/chart";
import { faded } from "../lib/palette";
import type { Transform } from "../lib/scales";
import { smoothed } from "../lib/smoothing";
import type { Frame } from "./frame";
import { ofKind, type Drawn } from "./series";

/** A line as it is drawn: raw, or a moving average above its faint raw line. */
export interface Stroke {
  colour: string;
  width: number;
  dash: number[];
  right: boolean;
  dots: boolean;
}

export interface Sheet {
  strokes: Stroke[];
  /** x, then one column for each stroke; `undefined` is another line's x, null a gap. */
  data: uPlot.AlignedData;
}

/** Lay out the lines of a frame. */
export function sheetOf(frame: Frame, all: readonly Drawn[], smoothing: number): Sheet {
  const strokes: Stroke[] = [];
  const tables: uPlot.AlignedData[] = [];
  const add = (x: Value[], y: Value[], stroke: Stroke) => {
    const [at, values] = ascending(x, y);
    tables.push([
      placed(frame.x.map, at) as number[],
      placed((stroke.right && frame.right ? frame.right : frame.y).map, values),
    ]);
    strokes.push(stroke);
  };
  const averages: (() => void)[] = [];
  for (const { mark, colour, dash } of ofKind(all, "line")) {
    const few = mark.x.length <= frame.box.width / 14;
    const crowded = mark.x.length > 1.5 * frame.box.width;
    const stroke = {
      colour,
      dash,
      width: 1.6,
      right: mark.right && frame.right !== null,
      dots: mark.dots || few,
    };
    if (mark.smooth && smoothing > 0) {
      add(mark.x, mark.y, { ...stroke, colour: faded(colour, crowded ? 0.32 : 0.42), width: 1 });
      const average = smoothed(mark.x, mark.y, smoothing);
      averages.push(() => add(mark.x, average, { ...stroke, width: crowded ? 1.25 : 2, dots: false }));
    } else add(mark.x, mark.y, stroke);
  }
  // Averages lie above all raw lines, also those of other quantities.
  for (const average of averages) average();
  return { strokes, data: tables.length ? uPlot.join(tables) : [[]] };
}

/** Points in the order of their steps, each step once: uPlot takes no others, and a resumed run may repeat some. */
function ascending(x: Value[], y: Value[]): [Value[], Value[]] {
  if (x.every((at, index) => at !== null && (index === 0 || at > x[index - 1]!))) return [x, y];
  const last = new Map<number, Value>();
  x.forEach((at, index) => {
    if (at !== null) last.set(at, y[index] ?? null);
  });
  const sorted = [...last].sort(([one], [other]) => one - other);
  return [sorted.map(([at]) => at), sorted.map(([, value]) => value)];
}

/** Values on a straight scale; null where it has no place for them. */
function placed(map: Transform, values: Value[]): Value[] {
  if (map.scale === "linear") return values;
  return values.map((value) => {
    const at = value === null ? NaN : map.forward(value);
    return Number.isNaN(at) ? null : at;
  });
}

/** A uPlot that draws these strokes in the current frame; `below` and `above` paint everything else. */
export function linePlot(
  host: HTMLElement,
  sheet: Sheet,
  current: () => Frame,
  paint: { below(context: CanvasRenderingContext2D): void; above(context: CanvasRenderingContext2D): void },
): uPlot {
  const pad = (side: (frame: Frame) => number) => () => side(current());
  const scaled = (painter: (context: CanvasRenderingContext2D) => void) => (plot: uPlot) => {
    plot.ctx.save();
    plot.ctx.scale(uPlot.pxRatio, uPlot.pxRatio);
    painter(plot.ctx);
    plot.ctx.restore();
  };
  const range = (ruler: (frame: Frame) => { low: number; high: number } | null) => (): [number, number] => {
    const found = ruler(current());
    return found ? [found.low, found.high] : [0, 1];
  };
  const options: uPlot.Options = {
    width: current().width,
    height: current().height,
    padding: [
      pad(({ box }) => box.top),
      pad(({ box, width }) => width - box.left - box.width),
      pad(({ box, height }) => height - box.top - box.height),
      pad(({ box }) => box.left),
    ],
    legend: { show: false },
    // The page's own pointer serves all kinds of plots alike.
    cursor: { show: false },
    scales: {
      x: { time: false, range: range((frame) => frame.x) },
      y: { range: range((frame) => frame.y) },
      right: { range: range((frame) => frame.right) },
    },
    axes: [{ show: false }, { show: false }],
    series: [{}, ...sheet.strokes.map(seriesOf)],
    hooks: { drawClear: [scaled(paint.below)], draw: [scaled(paint.above)] },
  };
  return new uPlot(options, sheet.data, host);
}

function seriesOf(stroke: Stroke): uPlot.Series {
  return {
    scale: stroke.right ? "right" : "y",
    stroke: stroke.colour,
    width: stroke.width,
    dash: stroke.dash,
    points: {
      show: stroke.dots,
      size: 5,
      width: 0,
      fill: stroke.colour,
      // Where lines are not dotted, a point between two gaps would not be seen at all.
      filter: (plot, index, show) => (show ? null : lonely(plot.data[index] as (Value | undefined)[])),
    },
  };
}

/** Indices of points with a gap, or nothing, on both sides; null if there are none. */
export function lonely(values: readonly (Value | undefined)[]): number[] | null {
  const found: number[] = [];
  let before: Value | undefined = null;
  let candidate = -1;
  values.forEach((value, index) => {
    if (value === undefined) return;
    if (candidate >= 0 && value === null) found.push(candidate);
    candidate = value !== null && before === null ? index : -1;
    before = value;
  });
  if (candidate >= 0) found.push(candidate);
  return found.length ? found : null;
}

/** Whether two sheets differ in their numbers only, so that a uPlot can be kept. */
export function sameStrokes(one: Sheet, other: Sheet): boolean {
  return JSON.stringify(one.strokes) === JSON.stringify(other.strokes);
}
