/** The page's state: which runs, which screen, which moment. Panels read it, controls write it. */

import { untrack } from "svelte";
import { START, put, read, written, type Place } from "./address";
import type { Api, InstrumentInfo, RunCard, RunPage, ScreenInfo, Sequences, View } from "./api";
import type { Chart, Scale, Theme, Value, Zoom } from "./chart";
import { Feed } from "./feed.svelte";
import { runColour } from "./palette";
import { after, before, union } from "./steps";
import { listen } from "./ticks";
import { trouble } from "./trouble.svelte";

/** What need not follow the time bar's every movement waits until it rests, but a replay never does: not for ever. */
const REST_MS = 200;
const HELD_REST_MS = 600;
const LAG_MS = 1500;

/** Browsers refuse more than a few changes of the address in a second. */
const ADDRESS_MS = 150;

/** A run that dies writes nothing, so that no change is announced: how often a running one is asked for. */
const LOOK_MS = 15_000;

/** Screens that are not made of instruments. */
export const FINDINGS = "findings";
export const COMPARE = "compare";

export class Cockpit {
  readonly api: Api;
  /** Made for a notebook's cell: no rail, less around the instruments. */
  readonly compact: boolean;

  place = $state<Place>({ ...START });
  theme = $state<Theme>("dark");
  /** Whether the time bar is being dragged. */
  held = $state(false);
  /** The step under the pointer, in whichever panel. */
  hover = $state<number | null>(null);
  /** Charts as last shown, by "run/instrument": for tests, and for the steps that were recorded. */
  readonly charts = new Map<string, Chart>();

  #cards = new Feed<RunCard[]>();
  #pages = $state<Record<string, Feed<RunPage>>>({});
  #sequences = $state.raw<Sequences>({});
  /** Steps of the leading run that lines were drawn through, by line. */
  #recorded: { id: string; lines: Map<string, Value[]> } = { id: "", lines: new Map() };
  #looks = 0;
  #slots = $state<Record<string, number>>({});
  #settled = $state<number | null>(null);

  readonly runs = $derived(this.#cards.value ?? []);
  /** Whether the list of runs has arrived. */
  readonly ready = $derived(this.#cards.value !== null);
  readonly chosen = $derived(this.place.runs);
  /** The run that single-run parts of the page speak of: the first chosen one. */
  readonly lead = $derived(this.chosen[0] ?? null);
  readonly page = $derived(this.lead === null ? null : this.pageOf(this.lead));
  readonly screens: ScreenInfo[] = $derived(this.page?.screens ?? []);
  readonly tabs = $derived([
    ...this.screens.map(({ name, title }) => ({ name, title })),
    { name: FINDINGS, title: "Findings & events" },
    { name: COMPARE, title: "Compare" },
  ]);
  readonly tab = $derived(this.place.tab || (this.screens[0]?.name ?? FINDINGS));
  readonly instruments = $derived(
    new Map<string, InstrumentInfo>((this.page?.instruments ?? []).map((info) => [info.name, info])),
  );
  readonly lastStep = $derived(
    Math.max(0, ...this.chosen.map((id) => this.pageOf(id)?.last_step ?? this.cardOf(id)?.last_step ?? 0)),
  );
  /** All steps of the runs shown: every step axis runs over them, so that a moment stands at one place in all. */
  readonly extent: Zoom | null = $derived(this.lastStep > 0 ? { first: 0, last: this.lastStep } : null);
  /** The moment shown: the chosen step, or the newest. */
  readonly step = $derived(Math.min(this.place.step ?? this.lastStep, this.lastStep));

  /** The step of the time bar, for what need not follow its every movement; null: the newest. */
  get settledStep(): number | null {
    return this.#settled;
  }

  constructor(api: Api, compact = false) {
    this.api = api;
    this.compact = compact;
  }

  /** Begin to listen; returns what ends it. Called once, where effects may run. */
  start(): () => void {
    this.place = read(location.hash);
    this.#settled = this.place.step;
    this.#seatAll();
    /** When the time bar left the settled step, and when the address was changed last. */
    let left: number | null = null;
    let wrote = -Infinity;
    let address = location.hash;
    const moved = () => {
      // The page's own writing is late, and no news.
      if (location.hash === address) return;
      address = location.hash;
      this.place = read(address);
      this.#seatAll();
    };
    window.addEventListener("hashchange", moved);
    this.#cards.want("first", () => this.api.runs());
    const stop = this.api.live
      ? listen(
          this.api,
          (sequences) => this.#heard(sequences),
          (error) => trouble.report(error),
        )
      : () => {};
    $effect(() => this.#choose());
    $effect(() => {
      if (!this.api.live || !this.runs.some(({ status }) => status === "running")) return;
      const looking = setInterval(() => document.hidden || this.#look(), LOOK_MS);
      return () => clearInterval(looking);
    });
    $effect(() => {
      const { step } = this.place;
      if (step === this.#settled) return;
      left ??= performance.now();
      const settle = () => {
        left = null;
        this.#settled = step;
      };
      const patience = this.held ? HELD_REST_MS : Math.min(REST_MS, left + LAG_MS - performance.now());
      const timer = setTimeout(settle, Math.max(0, patience));
      return () => clearTimeout(timer);
    });
    $effect(() => this.#fetchPages());
    $effect(() => {
      const hash = written(this.place);
      const write = () => {
        wrote = performance.now();
        put(hash);
        address = location.hash;
      };
      const wait = wrote + ADDRESS_MS - performance.now();
      if (wait <= 0) return write();
      const timer = setTimeout(write, wait);
      return () => clearTimeout(timer);
    });
    return () => {
      stop();
      window.removeEventListener("hashchange", moved);
    };
  }

  cardOf(id: string): RunCard | undefined {
    return this.runs.find((card) => card.id === id);
  }

  pageOf(id: string): RunPage | null {
    return this.#pages[id]?.value ?? null;
  }

  nameOf(id: string): string {
    return this.cardOf(id)?.name ?? id;
  }

  /** The colour a chosen run has while it is chosen. */
  colourOf(id: string): string {
    return runColour(this.#slots[id] ?? 0, this.theme);
  }

  sequenceOf(id: string): number {
    return this.#sequences[id] ?? this.cardOf(id)?.sequence ?? 0;
  }

  /** What to ask for so that an instrument shows this moment; where only its readings follow, it may come later. */
  viewOf(info: InstrumentInfo, points: number): View {
    const { zoom, scope, step } = this.place;
    return {
      step: info.moment ? step : this.#settled,
      first: zoom && Math.floor(zoom.first),
      last: zoom && Math.ceil(zoom.last),
      points,
      scope: info.layered ? scope : "",
    };
  }

  toggleRun(id: string): void {
    const chosen = this.place.runs;
    if (!chosen.includes(id)) this.#seat(id);
    else if (chosen.length > 1) delete this.#slots[id];
    else return;
    this.place.runs = chosen.includes(id) ? chosen.filter((other) => other !== id) : [...chosen, id];
  }

  /** Show this run alone. */
  showRun(id: string): void {
    this.#slots = { [id]: 0 };
    this.place.runs = [id];
  }

  goTo(step: number | null): void {
    this.place.step = step === null ? null : Math.round(Math.min(Math.max(0, step), this.lastStep));
  }

  /** Move by so many recorded steps; beyond the newest the page follows the run again. */
  moveBy(count: number): void {
    const recorded = this.#recorded.id === this.lead ? union(this.#recorded.lines.values()) : [];
    let step: number | null = this.step;
    for (let moved = 0; moved < Math.abs(count) && step !== null; moved++)
      step = count > 0 ? after(recorded, step, this.lastStep) : before(recorded, step);
    this.goTo(step);
  }

  zoomTo(zoom: Zoom | null): void {
    this.place.zoom = zoom;
  }

  setYScale(instrument: string, scale: Scale | null): void {
    if (scale) this.place.yscales[instrument] = scale;
    else delete this.place.yscales[instrument];
  }

  /** Keep a chart that is being shown, and learn from it which steps were recorded. */
  shown(id: string, chart: Chart): void {
    this.charts.set(`${id}/${chart.name}`, chart);
    if (id !== this.lead || this.place.zoom) return;
    if (this.#recorded.id !== id) this.#recorded = { id, lines: new Map() };
    for (const plot of chart.plots)
      for (const mark of plot.marks)
        if (plot.x.steps && mark.kind === "line")
          this.#recorded.lines.set(`${chart.name} ${plot.y.label} ${mark.label}`, mark.x);
  }

  #heard(sequences: Sequences): void {
    trouble.over();
    const known = this.#sequences;
    this.#sequences = sequences;
    const ids = Object.keys(sequences);
    if (ids.length !== Object.keys(known).length || ids.some((id) => sequences[id] !== known[id]))
      this.#cards.want(JSON.stringify(sequences), () => this.api.runs());
  }

  /** Ask for the runs again, changed or not. */
  #look(): void {
    this.#looks++;
    this.#cards.want(`look ${this.#looks}`, () => this.api.runs());
  }

  /** Something is always chosen, if there is anything to choose: by default the newest run that can be read. */
  #choose(): void {
    if (!this.ready) return;
    const there = this.place.runs.filter((id) => this.cardOf(id));
    const newest = this.runs.find((card) => !card.broken);
    const runs = there.length || !newest ? there : [newest.id];
    if (runs.length !== this.place.runs.length || runs.some((id, index) => id !== this.place.runs[index])) {
      this.place.runs = runs;
      this.#seatAll();
    }
  }

  #fetchPages(): void {
    for (const [id, feed] of Object.entries(this.#pages)) if (!this.chosen.includes(id)) feed.stop();
    for (const id of this.chosen) {
      const feed = (this.#pages[id] ??= new Feed<RunPage>());
      // A run that ended without a word changes its status, not its sequence.
      feed.want(`${this.sequenceOf(id)} ${this.cardOf(id)?.status}`, () => this.api.run(id));
    }
  }

  /** Give all chosen runs their colours anew. */
  #seatAll(): void {
    this.#slots = {};
    this.place.runs.forEach((id) => this.#seat(id));
  }

  #seat(id: string): void {
    const taken = new Set(untrack(() => Object.values(this.#slots)));
    let slot = 0;
    while (taken.has(slot)) slot++;
    this.#slots[id] = slot;
  }
}
