/** Which lines, bands and bars of a plot are drawn, in which colours: its own, and those of other runs. */

import type { Band, Bars, Disc, Line, OverlayPlot, Plot, Theme, Tone, Zone } from "../lib/chart";
import { palettes } from "../lib/palette";

type Drawable = Line | Band | Bars | Disc | Zone;

/** A mark as it is drawn. */
export interface Drawn<M extends Drawable = Drawable> {
  mark: M;
  colour: string;
  /** Lengths of strokes and gaps; empty: solid. */
  dash: number[];
  /** The run it belongs to; "" where there is only one. */
  run: string;
  /** Whether it is another run's. */
  other: boolean;
}

const DASHES: readonly number[][] = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

/**
 * The marks with data, in the order of drawing, other runs' beneath.
 *
 * With one run colours tell quantities apart. With several, colours tell runs apart and dashes quantities.
 */
export function drawn(
  plot: Plot,
  overlay: readonly OverlayPlot[],
  theme: Theme,
  own: { label?: string; colour?: string | null } = {},
): Drawn[] {
  const tones = palettes[theme].tones;
  const several = overlay.length > 0;
  const runs = [
    ...[...overlay].reverse().map((run) => ({ ...run, other: true })),
    { label: several ? (own.label ?? "") : "", colour: (several && own.colour) || null, plot, other: false },
  ];
  return runs.flatMap(({ label, colour, plot: { marks }, other }) => {
    const lines = new Map<string, number>();
    return marks.filter(drawable).map((mark) => {
      // Quiet lines (references such as a parabola) are the same for all runs and keep their tone.
      const quiet = mark.tone === "neutral" || mark.tone === "faint";
      const key = `${mark.kind} ${mark.label}`;
      if (mark.kind === "line" && !quiet && !lines.has(key)) lines.set(key, lines.size);
      const dash = several && mark.kind === "line" && !quiet ? DASHES[lines.get(key)! % DASHES.length]! : [];
      return {
        mark,
        colour: quiet || !colour ? tones[mark.tone] : colour,
        dash: dash.length === 0 && mark.kind === "line" && mark.dashed ? [5, 4] : dash,
        run: label,
        other,
      };
    });
  });
}

function drawable(mark: Plot["marks"][number]): mark is Drawable {
  return ["line", "band", "bars", "disc", "zone"].includes(mark.kind);
}

/** The drawn marks of one kind. */
export function ofKind<K extends Drawable["kind"]>(
  all: readonly Drawn[],
  kind: K,
): Drawn<Extract<Drawable, { kind: K }>>[] {
  return all.filter((one) => one.mark.kind === kind) as Drawn<Extract<Drawable, { kind: K }>>[];
}

/** An entry of the legend. */
export interface Entry {
  label: string;
  colour: string;
  shape: "line" | "area";
  dash: number[];
  /** On the right axis. */
  right: boolean;
}

/** What the legend says: quantities by colour, or, with several runs, runs by colour and quantities by dash. */
export function legend(all: readonly Drawn[], theme: Theme): { runs: Entry[]; quantities: Entry[] } {
  const own = all.filter((one) => !one.other);
  const others = all.filter((one) => one.other).reverse();
  const lines = ofKind(own, "line");
  const neutral = palettes[theme].tones.neutral;
  const runs = [...own, ...others].map(({ run, colour }) => entry(run, colour, "area"));
  const quantities = others.length
    ? lines.map(({ mark, dash }) => entry(mark.label, neutral, "line", dash, mark.right))
    : own.map(({ mark, colour, dash }) =>
        entry(
          mark.label,
          colour,
          mark.kind === "line" ? "line" : "area",
          dash,
          "right" in mark && mark.right,
        ),
      );
  return {
    runs: others.length ? named(runs) : [],
    // A single line in several runs is told by its axis.
    quantities: others.length && lines.length < 2 ? [] : named(quantities),
  };
}

function entry(
  label: string,
  colour: string,
  shape: Entry["shape"],
  dash: number[] = [],
  right = false,
): Entry {
  return { label, colour, shape, dash, right };
}

/** Those with a label, each label once. */
function named(entries: Entry[]): Entry[] {
  return entries.filter(
    ({ label }, index) => label && entries.findIndex((other) => other.label === label) === index,
  );
}

/** The colour of a tone. */
export function toneColour(tone: Tone, theme: Theme): string {
  return palettes[theme].tones[tone];
}
