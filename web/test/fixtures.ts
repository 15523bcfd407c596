/** Runs made up by hand, as the server would tell of them. */

import type { Api, InstrumentInfo, RunPage, View } from "../src/lib/api";
import type { Chart, Plot } from "../src/lib/chart";

const AXIS = { label: "", scale: "linear", range: null, steps: false, linear: 1, names: [] } as const;

export function plot(steps: number[], over = true): Plot {
  return {
    marks: [
      {
        kind: "line",
        label: "value",
        x: steps,
        y: steps.map((step) => step / 2),
        tone: "first",
        right: false,
        smooth: true,
        dashed: false,
        dots: false,
      },
    ],
    x: { ...AXIS, names: [], steps: over },
    y: { ...AXIS, names: [] },
    right: null,
    place: "main",
    upright: false,
  };
}

export function chart(name: string, parts: Partial<Chart> = {}): Chart {
  return {
    name,
    title: `Title of ${name}`,
    question: "Is it so?",
    plots: [plot([0, 10, 20, 30])],
    readings: [{ label: "now", value: 0.5, text: "0.500" }],
    notes: ["3 of 10 steps were concave."],
    missing: "",
    step: null,
    scope: "",
    ...parts,
  };
}

export function info(name: string, parts: Partial<InstrumentInfo> = {}): InstrumentInfo {
  return {
    name,
    title: `Title of ${name}`,
    question: "Is it so?",
    summary: "What it is.",
    reading: "Look here.\n\nThen there.",
    group: "step size",
    moment: false,
    layered: false,
    available: true,
    ...parts,
  };
}

export function run(id: string, parts: Partial<RunPage> = {}): RunPage {
  return {
    id,
    name: `run ${id}`,
    status: "finished",
    started: 1000,
    ended: 1090,
    config: "full",
    model: "Sequential",
    optimizer: "SGD",
    device: "cpu",
    steps: 4,
    last_step: 30,
    sequence: 1,
    hyperparameters: { lr: 0.1, momentum: 0.9 },
    loss: 0.25,
    overhead: 0.034,
    broken: "",
    parameters: [],
    quantities: [],
    versions: {},
    events: [{ step: 10, kind: "gap", text: "nothing was measured", scope: "" }],
    findings: [],
    instruments: [
      info("alpha", { moment: true }),
      info("loss", { group: "performance" }),
      info("norms", { layered: true, group: "gradients" }),
    ],
    screens: [
      {
        name: "primary",
        title: "Cockpit",
        rows: [
          [
            { title: "Step size", instruments: ["alpha", "norms"], wide: 1 },
            { title: "Performance", instruments: ["loss"], wide: 2 },
          ],
        ],
      },
    ],
    ...parts,
  };
}

export interface Asked {
  id: string;
  instrument: string;
  view: View;
}

/** A server that answers at once and remembers what it was asked for. */
export function fakeApi(runs: RunPage[], asked: Asked[] = [], parts: Partial<Chart> = {}): Api {
  return {
    live: false,
    stream: null,
    runs: async () => runs,
    run: async (id) => runs.find((run) => run.id === id)!,
    chart: async (id, instrument, view) => {
      asked.push({ id, instrument, view });
      return chart(instrument, { step: view.step ?? null, scope: view.scope ?? "", ...parts });
    },
    layers: async () => [
      {
        name: "3",
        parent: "",
        kind: "layer",
        size: 330,
        score: 0.9,
        why: "gradient is 40 × larger",
        grad_norm: 2,
        update: 0.1,
      },
      { name: "3.weight", parent: "3", kind: "parameter", size: 320, score: 0.9, why: "", grad_norm: 2, update: 0.1 },
      { name: "0", parent: "", kind: "layer", size: 10, score: 0.1, why: "", grad_norm: 0.05, update: 0.1 },
    ],
    sequences: async () => Object.fromEntries(runs.map((run) => [run.id, run.sequence])),
  };
}
