/** Paints bars, discs, and lines over anything but steps. */

import type { Value } from "../lib/chart";
import { faded } from "../lib/palette";
import type { Frame, Ruler } from "./frame";
import type { Context } from "./axes";
import { ofKind, type Drawn } from "./series";

/** A bar in pixels. */
export interface Rectangle {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Where bars lie; those without a height or an edge are left out. */
export function rectangles(
  frame: Frame,
  bars: { edges: Value[]; heights: Value[]; flat: boolean; right: boolean },
): (Rectangle | null)[] {
  const edges = bars.flat ? frame.y : frame.x;
  const lengths = bars.flat ? frame.x : lengthRuler(frame, bars.right);
  const base = baseline(lengths);
  return bars.heights.map((height, index) => {
    const [from, to] = [edges.at(bars.edges[index] ?? null), edges.at(bars.edges[index + 1] ?? null)];
    const end = lengths.at(height);
    if ([from, to, end].some(Number.isNaN)) return null;
    const across = [Math.min(from, to), Math.abs(to - from)] as const;
    const along = [Math.min(base, end), Math.abs(end - base)] as const;
    return bars.flat
      ? { x: along[0], y: across[0], width: along[1], height: across[1] }
      : { x: across[0], y: along[0], width: across[1], height: along[1] };
  });
}

function lengthRuler(frame: Frame, right: boolean): Ruler {
  return right && frame.right ? frame.right : frame.y;
}

/** Bars stand on zero, or on the end of the axis where it has no zero. */
function baseline(ruler: Ruler): number {
  const zero = ruler.map.forward(0);
  const place = Number.isNaN(zero) ? ruler.low : Math.min(Math.max(zero, ruler.low), ruler.high);
  return ruler.at(ruler.map.backward(place));
}

/** Paint bars: filled, with a line along their tops; other runs' as lines only. */
export function paintBars(context: Context, frame: Frame, all: readonly Drawn[]): void {
  for (const { mark, colour, other } of ofKind(all, "bars")) {
    const found = rectangles(frame, mark);
    // Thick bars stand apart; thin ones would only flicker.
    const gap = found.every((bar) => !bar || (mark.flat ? bar.height : bar.width) >= 7) ? 1 : 0;
    if (!other) {
      context.fillStyle = faded(colour, 0.34);
      context.beginPath();
      for (const bar of found) {
        if (!bar) continue;
        if (mark.flat) context.rect(bar.x, bar.y + gap / 2, bar.width, bar.height - gap);
        else context.rect(bar.x + gap / 2, bar.y, bar.width - gap, bar.height);
      }
      context.fill();
    }
    context.strokeStyle = colour;
    context.lineWidth = 1.25;
    context.beginPath();
    skyline(context, found, mark.flat, baseline(mark.flat ? frame.x : lengthRuler(frame, mark.right)));
    context.stroke();
  }
}

/** Follow the tops of neighbouring bars, down to the base at gaps. */
function skyline(context: Context, bars: readonly (Rectangle | null)[], flat: boolean, base: number): void {
  const to = (across: number, height: number) =>
    flat ? context.lineTo(height, across) : context.lineTo(across, height);
  let end: number | null = null;
  for (const bar of bars) {
    if (!bar || (flat ? bar.width : bar.height) < 0.01) {
      if (end !== null) to(end, base);
      end = null;
      continue;
    }
    // Row 0 lies at the bottom, so flat bars are followed from their lower edge up.
    const [from, until] = flat ? [bar.y + bar.height, bar.y] : [bar.x, bar.x + bar.width];
    const [low, high] = flat ? [bar.x, bar.x + bar.width] : [bar.y, bar.y + bar.height];
    const top = Math.abs(low - base) > Math.abs(high - base) ? low : high;
    if (end === null) {
      if (flat) context.moveTo(base, from);
      else context.moveTo(from, base);
    }
    to(from, top);
    to(until, top);
    end = until;
  }
  if (end !== null) to(end, base);
}

/** The curve that a circle around the origin becomes, in pixels. */
export function discPath(frame: Frame, radius: number, points = 180): [number, number][] {
  return Array.from({ length: points }, (_, index) => {
    const angle = (2 * Math.PI * index) / points;
    return [frame.x.at(radius * Math.cos(angle)), frame.y.at(radius * Math.sin(angle))];
  });
}

/** Paint discs around the origin. */
export function paintDiscs(context: Context, frame: Frame, all: readonly Drawn[]): void {
  for (const { mark, colour, other } of ofKind(all, "disc")) {
    if (mark.radius === null) continue;
    context.beginPath();
    for (const [x, y] of discPath(frame, mark.radius)) context.lineTo(x, y);
    context.closePath();
    context.fillStyle = faded(colour, other ? 0.05 : 0.22);
    context.fill();
    context.strokeStyle = colour;
    context.lineWidth = 1.75;
    context.stroke();
  }
}

/** Paint lines as they are; a point between two gaps becomes a dot. */
export function paintLines(context: Context, frame: Frame, all: readonly Drawn[]): void {
  for (const { mark, colour, dash } of ofKind(all, "line")) {
    const ruler = lengthRuler(frame, mark.right);
    const points = mark.x.map((x, index) => [frame.x.at(x), ruler.at(mark.y[index] ?? null)] as const);
    const there = (index: number) => points[index] !== undefined && !points[index].some(Number.isNaN);
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.setLineDash(dash);
    context.beginPath();
    points.forEach(([x, y], index) => {
      if (!there(index)) return;
      if (there(index - 1)) context.lineTo(x, y);
      else context.moveTo(x, y);
    });
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    points.forEach(([x, y], index) => {
      if (!there(index) || !(mark.dots || (!there(index - 1) && !there(index + 1)))) return;
      context.moveTo(x + 2.5, y);
      context.arc(x, y, 2.5, 0, 2 * Math.PI);
    });
    context.fill();
  }
}
