/** What the page asks the server, and the shapes of its answers. A report answers the same calls: see staticApi. */

import type { Chart } from "./chart";

export interface RunCard {
  /** Opaque; never a path. */
  id: string;
  name: string;
  status: string;
  started: number | null;
  ended: number | null;
  config: string;
  model: string;
  optimizer: string;
  device: string;
  steps: number;
  last_step: number | null;
  /** Grows with every change of the run. */
  sequence: number;
  hyperparameters: Record<string, string | number | boolean | null>;
  loss: number | null;
  /** Time spent watching, relative to the training without it. */
  overhead: number | null;
  /** Why the run cannot be read; empty if it can. */
  broken: string;
}

export interface Finding {
  rule: string;
  severity: "info" | "warning" | "error";
  steps: [number, number];
  scope: string;
  message: string;
  advice: string;
}

export interface RunEvent {
  step: number;
  kind: string;
  text: string;
  scope: string;
}

export interface InstrumentInfo {
  name: string;
  title: string;
  question: string;
  summary: string;
  /** How to read it: paragraphs with empty lines between. */
  reading: string;
  group: string;
  /** It shows one step, so that the time bar moves it. */
  moment: boolean;
  /** It can be asked for a single layer. */
  layered: boolean;
  available: boolean;
}

export interface ScreenColumn {
  title: string;
  instruments: string[];
  wide: number;
}

export interface ScreenInfo {
  name: string;
  title: string;
  rows: ScreenColumn[][];
}

export interface RunPage extends RunCard {
  parameters: { name: string; shape: number[]; way: string; reason: string }[];
  quantities: { name: string; doc: string; settings: Record<string, unknown> }[];
  versions: Record<string, string>;
  events: RunEvent[];
  findings: Finding[];
  instruments: InstrumentInfo[];
  screens: ScreenInfo[];
}

export interface Layer {
  name: string;
  parent: string;
  kind: "layer" | "parameter";
  size: number;
  /** How conspicuous it is, 0 to 1. */
  score: number;
  why: string;
  grad_norm: number | null;
  update: number | null;
}

/** What of a run is to be shown; mirrors `View` in chart.py. */
export interface View {
  step?: number | null;
  first?: number | null;
  last?: number | null;
  points?: number;
  scope?: string;
}

export type Sequences = Record<string, number>;

export interface Api {
  /** Whether anything can change: false for a report. */
  readonly live: boolean;
  /** Where changes are announced; null: ask for sequences instead. */
  readonly stream: string | null;
  runs(): Promise<RunCard[]>;
  run(id: string): Promise<RunPage>;
  chart(id: string, instrument: string, view: View): Promise<Chart>;
  layers(id: string, step: number | null): Promise<Layer[]>;
  sequences(): Promise<Sequences>;
}

/** The server refused (its status), or could not be reached (0). */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const PATIENCE_MS = 30_000;

/** Answers from the server the page came from. A token, where there is one, travels as a header. */
export function serverApi(token: string | null): Api {
  const ask = async <T>(path: string): Promise<T> => {
    let answer: Response;
    try {
      answer = await fetch(path, {
        cache: "no-store",
        credentials: "same-origin",
        headers: token ? { "X-Cockpit-Token": token } : {},
        signal: AbortSignal.timeout(PATIENCE_MS),
      });
    } catch {
      throw new Refusal(0, "The server does not answer. Trying again by itself.");
    }
    if (!answer.ok) throw new Refusal(answer.status, refusal(answer.status));
    try {
      return (await answer.json()) as T;
    } catch {
      throw new Refusal(0, "The server's answer broke off. Trying again by itself.");
    }
  };
  const run = (id: string) => `api/runs/${encodeURIComponent(id)}`;
  return {
    live: true,
    // A stream cannot carry a header, so a page that lives on a token asks instead of listening.
    stream: token ? null : "api/ticks",
    runs: async () => (await ask<{ runs: RunCard[] }>("api/runs")).runs,
    run: (id) => ask<RunPage>(run(id)),
    chart: async (id, instrument, view) =>
      (await ask<{ chart: Chart }>(`${run(id)}/charts/${encodeURIComponent(instrument)}${query(view)}`)).chart,
    layers: async (id, step) => (await ask<{ layers: Layer[] }>(`${run(id)}/layers${query({ step })}`)).layers,
    sequences: async () => (await ask<{ runs: Sequences }>("api/sequences")).runs,
  };
}

/** The view as a query, without what is not set. */
export function query(view: View): string {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(view))
    if (value !== null && value !== undefined && value !== "") parts.set(name, String(value));
  const text = parts.toString();
  return text ? `?${text}` : "";
}

function refusal(status: number): string {
  if (status === 401) return "The server asks for its token: open the address that “cockpit show” has printed.";
  if (status === 404) return "The server does not know this any more.";
  return `The server answered with an error (${status}). Trying again by itself.`;
}

/** Take the token out of the address bar, so that it is neither copied nor kept in the history. */
export function takeToken(place: Location, history: History): string | null {
  const address = new URL(place.href);
  const token = address.searchParams.get("token");
  if (token !== null) {
    address.searchParams.delete("token");
    history.replaceState(history.state, "", address);
  }
  return token;
}
