/** Charts as the server sends them: the fields of `cockpit/instruments/chart.py`, under their own names. */

export type Scale = "linear" | "log" | "symlog";
export type Tone = "first" | "second" | "third" | "fourth" | "neutral" | "faint" | "good" | "bad";
export type Place = "main" | "top" | "right" | "left" | "below";
export type Theme = "dark" | "light";

/** A number that was not finite is null: a gap. */
export type Value = number | null;

export interface Axis {
  label: string;
  scale: Scale;
  range: [number, number] | null;
  /** It counts training steps: linked with all other such axes. */
  steps: boolean;
  /** Half-width of the linear part of a symlog axis. */
  linear: number;
  /** One name per unit, from 0.5 on. */
  names: string[];
}

export interface Line {
  kind: "line";
  label: string;
  x: Value[];
  y: Value[];
  tone: Tone;
  right: boolean;
  smooth: boolean;
  dashed: boolean;
  dots: boolean;
}

export interface Band {
  kind: "band";
  label: string;
  x: Value[];
  low: Value[];
  high: Value[];
  tone: Tone;
}

export interface Bars {
  kind: "bars";
  label: string;
  edges: Value[];
  heights: Value[];
  tone: Tone;
  right: boolean;
  /** They lie on their side, edges along y. */
  flat: boolean;
}

export interface Heat {
  kind: "heat";
  label: string;
  x: Value[];
  y: Value[];
  /** [rows][columns], row 0 at the bottom. */
  values: Value[][];
  scale: "linear" | "log";
}

export interface Guide {
  kind: "guide";
  axis: "x" | "y";
  at: Value;
  label: string;
  tone: Tone;
}

export interface Zone {
  kind: "zone";
  axis: "x" | "y";
  low: Value;
  high: Value;
  label: string;
  tone: Tone;
}

export interface Disc {
  kind: "disc";
  radius: Value;
  label: string;
  tone: Tone;
}

export interface Ticks {
  kind: "ticks";
  label: string;
  at: Value[];
  texts: string[];
  tone: Tone;
}

export type Mark = Line | Band | Bars | Heat | Guide | Zone | Disc | Ticks;

export interface Plot {
  marks: Mark[];
  x: Axis;
  y: Axis;
  right: Axis | null;
  place: Place;
  /** Shapes keep their proportions. */
  upright: boolean;
}

export interface Reading {
  label: string;
  value: Value;
  text: string;
}

export interface Chart {
  name: string;
  title: string;
  question: string;
  plots: Plot[];
  readings: Reading[];
  notes: string[];
  /** What is not there and how to turn it on; then there are no plots. */
  missing: string;
  step: number | null;
  scope: string;
}

/** A stretch of steps. */
export interface Zoom {
  first: number;
  last: number;
}

/** Another run's version of the same plot, drawn in that run's colour. */
export interface OverlayPlot {
  label: string;
  colour: string;
  plot: Plot;
}

/** Another run's version of the same chart. */
export interface OverlayChart {
  label: string;
  colour: string;
  chart: Chart;
}

/** What plots and charts are told about the page around them; all have defaults. */
export interface Surroundings {
  /** The whole height in CSS pixels. */
  height?: number;
  /** The step of the time bar. */
  cursor?: number | null;
  zoom?: Zoom | null;
  /** The steps of all runs shown, which step axes reach while there is no zoom; null: those of the plot. */
  extent?: Zoom | null;
  /** A stretch was dragged; (null, null) after a double click: show all. */
  onzoom?: (first: number | null, last: number | null) => void;
  /** The step under the pointer, or null when it leaves. */
  onhover?: (step: number | null) => void;
  /** Weight of the past in the moving average, 0 (none) to 0.99. */
  smoothing?: number;
  /** Replaces the scale of step axes. */
  xscale?: Scale | null;
  /** Replaces the scale of the main plot's y axis. */
  yscale?: Scale | null;
  theme?: Theme;
  /** With overlays: the run the plot itself belongs to. */
  label?: string;
  colour?: string | null;
}

/** Props of `PlotView.svelte`. */
export interface PlotProps extends Surroundings {
  plot: Plot;
  overlay?: OverlayPlot[];
}

/** Props of `ChartView.svelte`. */
export interface ChartProps extends Surroundings {
  chart: Chart;
  overlay?: OverlayChart[];
}
