/** Answers from a report: a page that carries its data and never asks the network. */

import type { Api, Layer, RunPage, View } from "./api";
import type { Chart } from "./chart";

interface Moments {
  /** [null] with one chart for instruments that do not follow the time bar. */
  steps: (number | null)[];
  charts: Chart[];
}

export interface Report {
  runs: RunPage[];
  charts: Record<string, Record<string, Moments>>;
  scoped?: Record<string, Record<string, Record<string, Chart>>>;
  layers?: Record<string, { layers: Layer[] }>;
}

/** The report in this document, or null on a page of a server. */
export function foundReport(document: Document): Report | null {
  const text = document.getElementById("cockpit-report")?.textContent;
  return text ? (JSON.parse(text) as Report) : null;
}

export function staticApi(report: Report): Api {
  const run = (id: string) => {
    const found = report.runs.find((run) => run.id === id);
    if (!found) throw new Error("This report does not hold that run.");
    return found;
  };
  return {
    live: false,
    stream: null,
    runs: async () => report.runs,
    run: async (id) => run(id),
    chart: async (id, instrument, view) => {
      const held = view.scope
        ? report.scoped?.[id]?.[view.scope]?.[instrument]
        : nearest(report.charts[id]?.[instrument], view.step ?? null);
      return held ?? absent(run(id), instrument, view);
    },
    layers: async (id) => report.layers?.[id]?.layers ?? [],
    sequences: async () => Object.fromEntries(report.runs.map((run) => [run.id, run.sequence])),
  };
}

/** The last chart at or before the step: what was known then; the first one if there is none. */
function nearest(moments: Moments | undefined, step: number | null): Chart | undefined {
  if (!moments) return undefined;
  if (step === null) return moments.charts.at(-1);
  const at = moments.steps.findLastIndex((held) => held === null || held <= step);
  return moments.charts[Math.max(0, at)];
}

function absent(run: RunPage, instrument: string, view: View): Chart {
  const info = run.instruments.find((info) => info.name === instrument);
  const of = view.scope ? ` of ${view.scope}` : "";
  return {
    name: instrument,
    title: info?.title ?? instrument,
    question: info?.question ?? "",
    plots: [],
    readings: [],
    notes: [],
    missing: `This report does not hold this instrument${of}. The live page shows it: cockpit show.`,
    step: null,
    scope: view.scope ?? "",
  };
}
