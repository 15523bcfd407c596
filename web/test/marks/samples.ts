/** Charts that use every mark, every scale and every arrangement. */

import type { Axis, Chart, Mark, Plot, Value } from "../../src/lib/chart";

export function axis(given: Partial<Axis> = {}): Axis {
  return { label: "", scale: "linear", range: null, steps: false, linear: 1, names: [], ...given };
}

export const steps = axis({ label: "step", steps: true });

export function plot(marks: Mark[], given: Partial<Plot> = {}): Plot {
  return { marks, x: axis(), y: axis(), right: null, place: "main", upright: false, ...given };
}

export function chart(name: string, plots: Plot[]): Chart {
  return {
    name,
    title: name,
    question: "",
    plots,
    readings: [],
    notes: [],
    missing: "",
    step: null,
    scope: "",
  };
}

export function line(
  label: string,
  x: Value[],
  y: Value[],
  given: Partial<Extract<Mark, { kind: "line" }>> = {},
): Mark {
  return {
    kind: "line",
    label,
    x,
    y,
    tone: "first",
    right: false,
    smooth: false,
    dashed: false,
    dots: false,
    ...given,
  };
}

export function bars(
  label: string,
  edges: Value[],
  heights: Value[],
  given: Partial<Extract<Mark, { kind: "bars" }>> = {},
): Mark {
  return { kind: "bars", label, edges, heights, tone: "first", right: false, flat: false, ...given };
}

/** Numbers between 0 and 1 that look random and are always the same. */
export function noise(seed = 1): () => number {
  let state = seed;
  return () => (state = (state * 16807) % 2147483647) / 2147483647;
}

export function range(count: number, from = 0, step = 1): number[] {
  return Array.from({ length: count }, (_, index) => from + index * step);
}

const random = noise(7);
const x = range(300);
const loss = x.map((step) => 2.3 * Math.exp(-step / 90) + 0.2 + 0.3 * random());
const gap = loss.map((y, step) => (step > 200 && step < 220 ? null : y));
const rate = x.map((step) => 1e-7 * (1 + Math.floor(step / 60)));
const edges = range(41, -2, 0.1);
const counts = (scale: number) =>
  range(40).map((index) => Math.round(scale * Math.exp(-(((index - 20) / 7) ** 2))));
const table = range(30).map((row) =>
  range(40).map((column) => Math.round(5000 * Math.exp(-(((row - 15) / 4) ** 2) - ((column - 20) / 6) ** 2))),
);
const names = range(14).map(
  (index) => `features.block${Math.floor(index / 2)}.conv.${index % 2 ? "bias" : "weight"}`,
);

export const samples: Chart[] = [
  chart("lines, band, ticks, guides, right axis", [
    plot(
      [
        {
          kind: "band",
          label: "spread",
          x,
          low: gap.map((y) => y && y - 0.3),
          high: gap.map((y) => y && y + 0.3),
          tone: "first",
        },
        line("loss", x, gap, { smooth: true }),
        line(
          "accuracy",
          x.filter((step) => step % 25 === 0),
          range(12).map((k) => 1 - 0.8 ** k),
          { right: true, tone: "second" },
        ),
        { kind: "guide", axis: "y", at: 1, label: "one", tone: "neutral" },
        { kind: "guide", axis: "y", at: 1.05, label: "a bit more", tone: "good" },
        { kind: "guide", axis: "y", at: 400, label: "far above", tone: "bad" },
        { kind: "guide", axis: "x", at: 150, label: "rate halved", tone: "neutral" },
        {
          kind: "ticks",
          label: "not finite",
          at: [201, 210, 219],
          texts: ["NaN", "NaN", "inf"],
          tone: "bad",
        },
        { kind: "zone", axis: "x", low: 200, high: 220, label: "gap", tone: "bad" },
      ],
      { x: steps, y: axis({ label: "loss" }), right: axis({ label: "accuracy", range: [0, 1] }) },
    ),
  ]),
  chart("tiny numbers", [plot([line("rate", x, rate)], { x: steps, y: axis({ label: "learning rate" }) })]),
  chart("log", [
    plot(
      [
        line(
          "value",
          x,
          x.map((step) => 10 ** (4 - step / 30)),
          { dots: false },
        ),
      ],
      { x: steps, y: axis({ label: "value", scale: "log" }) },
    ),
  ]),
  chart("symlog", [
    plot(
      [
        line(
          "value",
          x,
          x.map((step) => (step - 150) ** 3),
          { tone: "third" },
        ),
      ],
      { x: steps, y: axis({ label: "value", scale: "symlog" }) },
    ),
  ]),
  chart("one point", [plot([line("value", [0], [1])], { x: steps, y: axis({ label: "value" }) })]),
  chart("nothing positive", [
    plot(
      [
        line(
          "value",
          x,
          x.map(() => -1),
        ),
      ],
      { x: steps, y: axis({ label: "value", scale: "log" }) },
    ),
  ]),
  chart("bars and a curve", [
    plot(
      [
        line(
          "unit parabola",
          range(61, -1.5, 0.05),
          range(61, -1.5, 0.05).map((at) => at * at),
          { tone: "neutral" },
        ),
        bars(
          "all",
          edges,
          counts(0.2).map((_, k) => counts(100)[k]! / 1000),
          { tone: "faint", right: true },
        ),
        bars(
          "last 10 %",
          edges,
          counts(100)
            .map((_, k) => counts(100)[k + 4] ?? 0)
            .map((y) => y / 900),
          { right: true },
        ),
        { kind: "guide", axis: "x", at: -1, label: "start", tone: "neutral" },
        { kind: "guide", axis: "x", at: 0, label: "minimum", tone: "good" },
        { kind: "guide", axis: "x", at: 1, label: "as high again", tone: "bad" },
      ],
      {
        x: axis({ label: "local step length α", range: [-1.5, 1.5] }),
        y: axis({ label: "loss" }),
        right: axis({ label: "density" }),
      },
    ),
  ]),
  chart("histogram, log counts", [
    plot([bars("gradient elements", edges, counts(80000))], {
      x: axis({ label: "gradient element" }),
      y: axis({ label: "count", scale: "log" }),
    }),
  ]),
  chart("map with margins", [
    plot([{ kind: "heat", label: "count", x: edges, y: range(31, -1.5, 0.1), values: table, scale: "log" }], {
      x: axis({ label: "parameter" }),
      y: axis({ label: "gradient" }),
    }),
    plot([bars("parameters", edges, counts(5000))], {
      x: axis({ label: "parameter" }),
      y: axis({ scale: "log" }),
      place: "top",
    }),
    plot([bars("gradients", range(31, -1.5, 0.1), counts(5000).slice(5, 35), { flat: true })], {
      x: axis({ scale: "log" }),
      place: "right",
    }),
  ]),
  chart("figure with series", [
    plot(
      [
        { kind: "zone", axis: "y", low: -0.7, high: 0.7, label: "inner", tone: "second" },
        { kind: "zone", axis: "x", low: -1.2, high: 1.2, label: "ortho", tone: "third" },
        { kind: "disc", radius: 0.9, label: "norm", tone: "first" },
      ],
      {
        x: axis({ scale: "symlog", linear: 0.1, range: [-2, 2] }),
        y: axis({ scale: "symlog", linear: 0.1, range: [-2, 2] }),
        upright: true,
      },
    ),
    ...(["left", "below", "top"] as const).map((place, index) =>
      plot(
        [
          line(["norm", "inner", "ortho"][index]!, x, loss, {
            tone: (["first", "second", "third"] as const)[index]!,
          }),
        ],
        {
          x: steps,
          y: axis({ label: ["norm", "inner", "ortho"][index]!, scale: "log" }),
          place,
        },
      ),
    ),
  ]),
  chart("layers over steps", [
    plot(
      [
        {
          kind: "heat",
          label: "gradient norm",
          x: range(101, 0, 3),
          y: range(15),
          scale: "log",
          values: range(14).map((row) =>
            range(100).map((column) =>
              row === 5 && column > 60 ? null : (row + 1) * Math.exp(-column / 40),
            ),
          ),
        },
      ],
      { x: steps, y: axis({ names }) },
    ),
  ]),
  chart("a bar for each layer", [
    plot(
      [
        bars(
          "norm",
          range(15),
          range(14).map((k) => 10 ** (k % 5)),
        ),
      ],
      { x: axis({ names }), y: axis({ label: "norm", scale: "log" }) },
    ),
  ]),
  chart("flat bars for layers", [
    plot(
      [
        bars(
          "norm",
          range(15),
          range(14).map((k) => 1 + (k % 5)),
          { flat: true },
        ),
      ],
      { y: axis({ names }), x: axis({ label: "norm" }) },
    ),
  ]),
];
