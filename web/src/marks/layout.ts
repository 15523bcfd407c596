/** How the plots of a chart stand together, and what stands above them. */

import type { Chart, Plot, Theme } from "../lib/chart";
import { legend, type Drawn, type Entry } from "./series";

/** The height of one row above a plot. */
export const HEADING_HEIGHT = 18;

/**
 * "stack": plots below each other; "margins": a map with bars along its edges; "beside": a figure, and next to it
 * how it came about.
 */
export interface Arrangement {
  kind: "stack" | "margins" | "beside";
  /** Indices into the chart's plots. */
  main: number[];
  top: number | null;
  side: number | null;
  /** In which column the bars beside the map stand. */
  sideFirst: boolean;
  series: number[];
}

/** Decide how a chart is laid out. */
export function arrange(chart: Chart): Arrangement {
  const indices = chart.plots.map((_, index) => index);
  const at = (place: Plot["place"]) => indices.filter((index) => chart.plots[index]!.place === place);
  const main = at("main");
  const figure = chart.plots[main[0] ?? -1];
  const others = indices.filter((index) => !main.includes(index));
  const margins = others.every((index) => follows(chart.plots[index]!, figure));
  const result = { main, top: null, side: null, sideFirst: false, series: [] };
  if (main.length === 1 && others.length && margins) {
    const [top, left, right] = [at("top")[0], at("left")[0], at("right")[0]];
    if (others.length === [top, left ?? right].filter((index) => index !== undefined).length) {
      return {
        ...result,
        kind: "margins",
        top: top ?? null,
        side: right ?? left ?? null,
        sideFirst: right === undefined && left !== undefined,
      };
    }
  }
  if (main.length === 1 && others.length && figure?.upright)
    return { ...result, kind: "beside", series: others };
  return {
    ...result,
    kind: "stack",
    main: [...at("top"), ...main, ...at("left"), ...at("right"), ...at("below")],
  };
}

/** Whether a plot continues an axis of the main one: bars above its columns or beside its rows. */
function follows(plot: Plot, main: Plot | undefined): boolean {
  if (!main || plot.place === "below") return false;
  if (plot.place === "top") return plot.x.steps === main.x.steps && plot.x.label === main.x.label;
  return plot.marks.some((mark) => mark.kind === "bars" && mark.flat);
}

/** Heights of plots below each other, the main ones twice as high; the last has `extra` pixels for its labels. */
export function shares(weights: readonly number[], height: number, extra: number): number[] {
  const unit = Math.max(0, height - extra) / weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map(
    (weight, index) => Math.floor(unit * weight) + (index === weights.length - 1 ? extra : 0),
  );
}

/** What stands above a plot: labels of axes, with the mark of what they measure if that is one thing, and entries. */
export interface Heading {
  y: { label: string; entry: Entry | null };
  right: { label: string; entry: Entry | null };
  entries: Entry[];
}

/** The heading of a plot; null where there is nothing to say. `wanted`: everything, labels of axes only, or nothing. */
export function headingOf(
  plot: Plot,
  all: readonly Drawn[],
  theme: Theme,
  wanted: "full" | "axes" | "none",
): Heading | null {
  const labels = { y: plot.y.label, right: plot.right?.label ?? "" };
  const heat = plot.marks.some((mark) => mark.kind === "heat");
  const { runs, quantities } = wanted === "full" ? legend(all, theme) : { runs: [], quantities: [] };
  if (wanted === "none") return null;
  if (!(runs.length || quantities.length || labels.y || labels.right || (heat && wanted === "full")))
    return null;
  // A single line needs no colour to be known: the label of its axis says what it is.
  const told = quantities.length === 1 && labels.y !== "";
  const only = (right: boolean) => {
    const found = quantities.filter((entry) => entry.right === right);
    return !told && found.length === 1 && (right ? labels.right : labels.y) ? found[0]! : null;
  };
  const [y, right] = [only(false), only(true)];
  return {
    y: { label: labels.y, entry: y },
    right: { label: labels.right, entry: right },
    entries: [...runs, ...quantities.filter((entry) => !told && entry !== y && entry !== right)],
  };
}

/** How many rows (0 to 2) a heading takes: entries move below the labels of the axes where they would not fit. */
export function headingRows(
  heading: Heading | null,
  width: number,
  measure: (text: string) => number,
): number {
  if (!heading) return 0;
  const axes = [heading.y, heading.right].filter(({ label }) => label);
  const parts = [
    ...axes.map(({ label, entry }) => measure(label) + (entry ? 20 : 0)),
    ...heading.entries.map(({ label }) => measure(label) + 20),
  ];
  const whole = parts.reduce((sum, part) => sum + part + 10, 0);
  return whole > width && axes.length && heading.entries.length ? 2 : 1;
}
