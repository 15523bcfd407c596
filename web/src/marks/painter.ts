/** Paints a whole plot. */

import type { Plot } from "../lib/chart";
import { paintAxes, type Context, type Ink } from "./axes";
import type { Frame } from "./frame";
import { paintHeat } from "./heat";
import { clipped, paintBands, paintEmpty, paintGuides, paintTicks, paintZones } from "./paint";
import type { Drawn } from "./series";
import { paintBars, paintDiscs, paintLines } from "./shapes";

/** Whether a plot consists of what `steps.ts` draws: curves over steps, and what is painted around them. */
export function overSteps(plot: Plot): boolean {
  return plot.x.steps && plot.marks.every((mark) => !["bars", "heat", "disc"].includes(mark.kind));
}

/** What lies below lines over steps. */
export function paintBelow(context: Context, frame: Frame, all: readonly Drawn[], ink: Ink): void {
  paintAxes(context, frame, ink);
  clipped(context, frame, () => {
    paintZones(context, frame, all);
    paintBands(context, frame, all);
  });
}

/** What lies above them. */
export function paintAbove(context: Context, frame: Frame, plot: Plot, ink: Ink): void {
  paintGuides(context, frame, plot, ink);
  paintTicks(context, frame, plot, ink);
  paintEmpty(context, frame, ink);
}

/** Paint a plot on a canvas with `ratio` device pixels to a CSS pixel. */
export function paintPlot(
  canvas: HTMLCanvasElement,
  frame: Frame,
  plot: Plot,
  all: readonly Drawn[],
  ink: Ink,
  ratio: number,
): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  canvas.width = Math.round(frame.width * ratio);
  canvas.height = Math.round(frame.height * ratio);
  context.scale(ratio, ratio);
  paintAxes(context, frame, ink);
  for (const mark of plot.marks) if (mark.kind === "heat") paintHeat(context, frame, mark, ink.theme, ratio);
  clipped(context, frame, () => {
    // One after the other: later marks lie above earlier ones.
    for (const one of all) {
      for (const paint of [paintZones, paintBands, paintBars, paintDiscs, paintLines])
        paint(context, frame, [one]);
    }
  });
  paintAbove(context, frame, plot, ink);
}
