/** The frame of a plot: where its box lies, and how values become pixels. */

import type { Axis, Mark, OverlayPlot, Plot, Scale, Value, Zoom } from "../lib/chart";
import { span, ticks, transform, type Tick, type Transform } from "../lib/scales";
import { columns, lengthAxis, whyEmpty, within, type Along } from "./numbers";

/** One axis in pixels; `at` gives NaN for values without a place. */
export interface Ruler {
  axis: Axis;
  map: Transform;
  /** Places (after `map.forward`) at both ends. */
  low: number;
  high: number;
  ticks: Tick[];
  at(value: Value): number;
  value(pixel: number): number;
}

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

export interface Gutters {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

export interface Frame {
  width: number;
  height: number;
  box: Box;
  x: Ruler;
  y: Ruler;
  right: Ruler | null;
  /** Why there is nothing to be seen; "" if there is something. */
  empty: string;
}

export interface FrameOptions {
  overlay?: readonly OverlayPlot[];
  /** The steps a step axis runs over; null: all. */
  zoom?: Zoom | null;
  /** The steps that an axis over all steps reaches at least. */
  extent?: Zoom | null;
  xscale?: Scale | null;
  yscale?: Scale | null;
  /** At least so wide (`top`: exactly so high), so that plots stand in line. */
  gutters?: Partial<Gutters>;
  /** Tick labels of the axes are left out. */
  bare?: { x?: boolean; y?: boolean };
  /** Width of a text in pixels. */
  measure?: (text: string) => number;
}

const LINE = 14;
const GAP = 6;
/** The longest name of a layer, as a share of the width. */
const NAMES = 0.34;
const LONG_NAME = 24;

/** Lay out a plot in a canvas of this size. */
export function frameOf(plot: Plot, width: number, height: number, options: FrameOptions = {}): Frame {
  const measure = options.measure ?? ((text: string) => 6.2 * text.length);
  const marks = [...plot.marks, ...(options.overlay ?? []).flatMap((run) => run.plot.marks)];
  const x = scaled(plot.x, plot.x.steps ? stepScale(options.xscale) : null);
  const y = scaled(plot.y, plot.y.names.length ? null : (options.yscale ?? null));
  const spanX = spanOf(x, marks, "x", plot, options.zoom ?? null, options.extent);
  // Heights fill the plot also where the marks reach beyond the steps shown.
  const seen = plot.x.steps && options.zoom ? within(marks, options.zoom) : marks;
  const spanY = spanOf(y, seen, "y", plot, null);
  const spanR = plot.right ? spanOf(scaled(plot.right, null), seen, "right", plot, null) : null;

  const inner = height - (options.gutters?.top ?? 8) - 20;
  const ticksY = ticksOf(y, spanY, Math.max(2, inner / 34));
  const ticksR = plot.right && spanR ? ticksOf(plot.right, spanR, Math.max(2, inner / 34)) : [];
  const widest = (found: Tick[]) => Math.ceil(Math.max(0, ...found.map((tick) => measure(tick.label))));
  const namesX = plot.x.names.length > 0;
  const longest = Math.max(0, ...plot.x.names.map(measure));
  const label = plot.x.label && !plot.x.steps ? LINE : 0;
  const least = options.gutters ?? {};
  const gutters: Gutters = {
    left: Math.max(
      least.left ?? 0,
      options.bare?.y ? 4 : Math.min(widest(ticksY), NAMES * width) + GAP + 2,
      8,
    ),
    right: Math.max(least.right ?? 0, plot.right ? widest(ticksR) + GAP + 2 : 8),
    top: least.top ?? 8,
    bottom: Math.max(
      least.bottom ?? 0,
      options.bare?.x ? 3 : (namesX ? Math.min(longest, 0.3 * height) + GAP : 20) + label,
    ),
  };
  const box = boxOf(gutters, width, height, plot.upright);
  const ticksX = ticksOf(x, spanX, Math.max(2, box.width / 74));
  return {
    width,
    height,
    box,
    x: ruler(x, spanX, ticksX, box.left, box.left + box.width),
    y: ruler(y, spanY, ticksY, box.top + box.height, box.top),
    right: plot.right ? ruler(plot.right, spanR ?? [0, 1], ticksR, box.top + box.height, box.top) : null,
    empty: whyEmpty(y, marks),
  };
}

/** Whole pixels, so that lines are crisp; square if shapes keep their proportions. */
function boxOf(gutters: Gutters, width: number, height: number, upright: boolean): Box {
  const left = Math.round(gutters.left);
  const top = Math.round(gutters.top);
  const box = {
    left,
    top,
    width: Math.max(10, Math.round(width - left - gutters.right)),
    height: Math.max(10, Math.round(height - top - gutters.bottom)),
  };
  if (!upright) return box;
  const length = Math.min(box.width, box.height);
  return {
    left: left + Math.floor((box.width - length) / 2),
    top: top + Math.floor((box.height - length) / 2),
    width: length,
    height: length,
  };
}

/** Steps begin at 0, for which a logarithm has no place: their log scale is linear up to 1. */
function stepScale(scale: Scale | null | undefined): Scale | null {
  return scale === "log" ? "symlog" : (scale ?? null);
}

function scaled(axis: Axis, scale: Scale | null): Axis {
  const wanted = scale ?? (axis.steps ? stepScale(axis.scale)! : axis.scale);
  return wanted === axis.scale ? axis : { ...axis, scale: wanted };
}

function spanOf(
  axis: Axis,
  marks: Mark[],
  along: Along,
  plot: Plot,
  zoom: Zoom | null,
  extent: Zoom | null = null,
): [number, number] {
  const map = transform(axis.scale, axis.linear);
  if (axis.names.length) return [0, axis.names.length];
  if (along === "x" && axis.steps && zoom && zoom.last > zoom.first) {
    return [map.forward(zoom.first), map.forward(zoom.last)];
  }
  if (axis.range) {
    const given = axis.range.map((value) => map.forward(value)) as [number, number];
    if (given.every(Number.isFinite) && given[1] > given[0]) return given;
  }
  const guides = marks.flatMap((mark) =>
    mark.kind === "guide" && mark.axis === along && mark.at !== null ? [mark.at] : [],
  );
  const edges = plot.marks.some((mark) => mark.kind === "heat" || (mark.kind === "bars" && mark.flat));
  const tight = along === "x" || (along === "y" && edges);
  const heights = marks.some((mark) => mark.kind === "bars" && lengthAxis(mark) === along);
  const reached = along === "x" && axis.steps && extent ? [[extent.first, extent.last]] : [];
  const found = span(map, [...columns(marks, along), ...reached], {
    guides,
    margin: tight && !heights ? 0 : 0.06,
    zero: heights,
  });
  return found ?? (map.scale === "log" ? [0, 1] : [0, map.forward(1)]);
}

function ticksOf(axis: Axis, [low, high]: [number, number], count: number): Tick[] {
  if (axis.names.length) {
    const cut = sharedStart(axis.names);
    return axis.names.map((name, index) => ({
      at: index + 0.5,
      label: cut ? `…${name.slice(cut)}` : name,
    }));
  }
  const map = transform(axis.scale, axis.linear);
  return ticks(map, map.backward(low), map.backward(high), count, axis.steps);
}

/** How many characters, up to a dot, all names begin with; 0 where they are short enough to be read in full. */
function sharedStart(names: readonly string[]): number {
  if (names.length < 2 || Math.max(...names.map((name) => name.length)) <= LONG_NAME) return 0;
  const [first, last] = [...names].sort().filter((_, index, all) => index === 0 || index === all.length - 1);
  let same = 0;
  while (same < first!.length && first![same] === last![same]) same++;
  return first!.lastIndexOf(".", same - 1) + 1;
}

function ruler(axis: Axis, [low, high]: [number, number], found: Tick[], start: number, end: number): Ruler {
  const map = transform(axis.scale, axis.linear);
  const scale = (end - start) / (high - low || 1);
  return {
    axis,
    map,
    low,
    high,
    ticks: found,
    at: (value) => (value === null ? NaN : start + (map.forward(value) - low) * scale),
    value: (pixel) => map.backward(low + (pixel - start) / scale),
  };
}
