/** The page's state: which runs, which screen, which moment. Panels read it, controls write it. */

import { untrack } from "svelte";
import { START, put, read, written, type Place } from "./address";
import type { Api, InstrumentInfo, RunCard, RunPage, ScreenInfo, Sequences, View } from "./api";
import type { Chart, Scale, Theme, Value, Zoom } from "./chart";
import { Feed } from "./feed.svelte";
import { runColour } from "./palette";
import { after, before } from "./steps";
import { listen } from "./ticks";
import { trouble } from "./trouble.svelte";

/** How far what is read only now and then may lag behind the time bar. */
const LAG_MS = 250;

/** Screens that are not made of instruments. */
export const FINDINGS = "findings";
export const COMPARE = "compare";

export class Cockpit {
  readonly api: Api;
  /** Made for a notebook's cell: no rail, less around the instruments. */
  readonly compact: boolean;

  place = $state<Place>({ ...START });
  theme = $state<Theme>("dark");
  /** The step under the pointer, in whichever panel. */
  hover = $state<number | null>(null);
  /** Charts as last shown, by "run/instrument": for tests, and for the steps that were recorded. */
  readonly charts = new Map<string, Chart>();

  #cards = new Feed<RunCard[]>();
  #pages = $state<Record<string, Feed<RunPage>>>({});
  #sequences = $state.raw<Sequences>({});
  #recorded: { id: string; steps: number[] } = { id: "", steps: [] };
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
    this.place.runs.forEach((id) => this.#seat(id));
    let timer: ReturnType<typeof setTimeout> | undefined;
    const moved = () => (this.place = read(location.hash));
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
      if (this.place.step === this.#settled) return;
      timer ??= setTimeout(() => {
        timer = undefined;
        this.#settled = this.place.step;
      }, LAG_MS);
    });
    $effect(() => this.#fetchPages());
    $effect(() => put(written(this.place)));
    return () => {
      stop();
      clearTimeout(timer);
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
    const recorded = this.#recorded.id === this.lead ? this.#recorded.steps : [];
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
    for (const plot of chart.plots)
      for (const mark of plot.marks) if (plot.x.steps && mark.kind === "line") this.#learn(id, mark.x);
  }

  /** The longest list of steps is the best one known. */
  #learn(id: string, steps: Value[]): void {
    if (this.#recorded.id === id && this.#recorded.steps.length > steps.length) return;
    this.#recorded = { id, steps: steps.filter((step): step is number => step !== null) };
  }

  #heard(sequences: Sequences): void {
    trouble.over();
    const known = this.#sequences;
    this.#sequences = sequences;
    const ids = Object.keys(sequences);
    if (ids.length !== Object.keys(known).length || ids.some((id) => sequences[id] !== known[id]))
      this.#cards.want(JSON.stringify(sequences), () => this.api.runs());
  }

  /** Something is always chosen, if there is anything to choose: by default the newest run that can be read. */
  #choose(): void {
    if (!this.ready) return;
    const there = this.place.runs.filter((id) => this.cardOf(id));
    const newest = this.runs.find((card) => !card.broken);
    const runs = there.length || !newest ? there : [newest.id];
    if (runs.length !== this.place.runs.length || runs.some((id, index) => id !== this.place.runs[index])) {
      this.place.runs = runs;
      this.#slots = {};
      runs.forEach((id) => this.#seat(id));
    }
  }

  #fetchPages(): void {
    for (const [id, feed] of Object.entries(this.#pages)) if (!this.chosen.includes(id)) feed.stop();
    for (const id of this.chosen) {
      const feed = (this.#pages[id] ??= new Feed<RunPage>());
      feed.want(String(this.sequenceOf(id)), () => this.api.run(id));
    }
  }

  #seat(id: string): void {
    const taken = new Set(untrack(() => Object.values(this.#slots)));
    let slot = 0;
    while (taken.has(slot)) slot++;
    this.#slots[id] = slot;
  }
}
