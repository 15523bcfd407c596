/** The numbers of marks: along which axis they lie, and whether there are any to be seen. */

import type { Axis, Bars, Line, Mark, Value, Zoom } from "../lib/chart";

export type Along = "x" | "y" | "right";

const side = (mark: Line | Bars) => (mark.right ? "right" : "y");

/** The axis along which bars have their heights. */
export const lengthAxis = (bars: Bars) => (bars.flat ? "x" : side(bars));

/** All values that marks have along an axis, column by column. */
export function columns(marks: Mark[], along: Along): Value[][] {
  return marks.flatMap((mark): Value[][] => {
    if (mark.kind === "line") return along === "x" ? [mark.x] : side(mark) === along ? [mark.y] : [];
    if (mark.kind === "bars") {
      if (along === (mark.flat ? "y" : "x")) return [mark.edges];
      return along === lengthAxis(mark) ? [mark.heights.filter((height) => height !== 0)] : [];
    }
    if (mark.kind === "zone") return mark.axis === along ? [[mark.low, mark.high]] : [];
    if (along === "right") return [];
    if (mark.kind === "band") return along === "x" ? [mark.x] : [mark.low, mark.high];
    if (mark.kind === "heat") return [along === "x" ? mark.x : mark.y];
    if (mark.kind === "disc" && mark.radius !== null) return [[-1.1 * mark.radius, 1.1 * mark.radius]];
    return mark.kind === "ticks" && along === "x" ? [mark.at] : [];
  });
}

/** The same marks, their curves cut to a stretch of steps; all of them if nothing of them lies within. */
export function within(marks: Mark[], { first, last }: Zoom): Mark[] {
  const cut = marks.map((mark) => {
    if (mark.kind !== "line" && mark.kind !== "band") return mark;
    const here = (_: Value, index: number) => {
      const at = mark.x[index] ?? null;
      return at !== null && at >= first && at <= last;
    };
    if (mark.kind === "line") return { ...mark, x: mark.x.filter(here), y: mark.y.filter(here) };
    return { ...mark, x: mark.x.filter(here), low: mark.low.filter(here), high: mark.high.filter(here) };
  });
  return cut.some((mark) => mark.kind === "line" && mark.x.length) ? cut : marks;
}

/** Why no mark can be seen; "" if one can, or if there are none. */
export function whyEmpty(axis: Axis, marks: Mark[]): string {
  const shown = marks.flatMap(numbers);
  if (!shown.length) return marks.length ? "no values" : "";
  if (shown.every((column) => column.every((value) => value === null))) return "no finite values";
  const counted = marks.every(
    (mark) => mark.kind === "heat" || mark.kind === "bars" || mark.kind === "guide",
  );
  if (counted && shown.every((column) => column.every((value) => !value))) return "nothing but zeros";
  if (axis.scale !== "log" || columns(marks, "right").length) return "";
  const heights = columns(marks, "y").flat();
  const positive = heights.some((value) => value !== null && value > 0);
  return heights.length && !positive ? "no positive values: a log scale shows none" : "";
}

/** The numbers that a mark is there to show. */
function numbers(mark: Mark): Value[][] {
  switch (mark.kind) {
    case "line":
      return [mark.y];
    case "band":
      return [mark.low, mark.high];
    case "bars":
      return [mark.heights];
    case "heat":
      return mark.values;
    case "disc":
      return [[mark.radius]];
    case "zone":
      return [[mark.low, mark.high]];
    default:
      return [];
  }
}
