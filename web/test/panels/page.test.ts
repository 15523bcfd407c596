/** The page as a user meets it: mounted whole, over a server made up by hand. */

import { cleanup, fireEvent, render, screen, waitFor, within } from "@testing-library/svelte";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import App from "../../src/App.svelte";
import type { RunPage } from "../../src/lib/api";
import type { Chart } from "../../src/lib/chart";
import { Cockpit } from "../../src/lib/state.svelte";
import { fakeApi, plot, run, type Asked } from "../fixtures";

vi.mock("../../src/marks/ChartView.svelte", async () => await import("./ChartStub.svelte"));

/** Every panel is in view at once. */
class Seen {
  constructor(protected readonly tell: (entries: { isIntersecting: boolean }[]) => void) {}
  observe() {
    this.tell([{ isIntersecting: true }]);
  }
  disconnect() {}
}

let asked: Asked[];

beforeEach(() => {
  asked = [];
  location.hash = "";
  vi.stubGlobal("IntersectionObserver", Seen);
  vi.stubGlobal("matchMedia", (media: string) => ({
    matches: true,
    media,
    addEventListener() {},
    removeEventListener() {},
  }));
  HTMLDialogElement.prototype.showModal ??= function (this: HTMLDialogElement) {
    this.open = true;
  };
  HTMLDialogElement.prototype.close ??= function (this: HTMLDialogElement) {
    this.open = false;
    this.dispatchEvent(new Event("close"));
  };
});
afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

async function open(runs: RunPage[], hash = "", parts: Partial<Chart> = {}) {
  location.hash = hash;
  const cockpit = new Cockpit(fakeApi(runs, asked, parts));
  render(App, { cockpit });
  await waitFor(() => expect(document.title).toContain("Cockpit"));
  return cockpit;
}

const drawn = () =>
  screen.getAllByTestId("drawn").map((output) => JSON.parse(output.textContent!) as Record<string, unknown>);
const panel = async (name: string) => within(await screen.findByRole("article", { name: `Title of ${name}` }));

describe("the page", () => {
  it("opens the newest run that can be read, with every instrument of the first screen", async () => {
    await open([run("x", { broken: "newer than this program" }), run("a"), run("b")]);
    await waitFor(() => expect(drawn().map(({ name }) => name)).toEqual(["alpha", "norms", "loss"]));
    expect(asked.every(({ id }) => id === "a")).toBe(true);
    const alpha = await panel("alpha");
    expect(alpha.getByText("Is it so?")).toBeTruthy();
    expect(alpha.getByText("0.500")).toBeTruthy();
    expect(alpha.getByText("3 of 10 steps were concave.")).toBeTruthy();
    expect(screen.getByText("newer than this program")).toBeTruthy();
  });

  it("says so when there are no runs", async () => {
    await open([]);
    expect(await screen.findByText("No runs yet")).toBeTruthy();
  });

  it("opens its notes by a click and closes them by Escape, which then shows no other steps", async () => {
    const cockpit = await open([run("a")], "#zoom=5~20");
    const alpha = await panel("alpha");
    const notes = await alpha.findByRole("button", { name: "1 note on Title of alpha" });
    await fireEvent.click(notes);
    expect(notes.getAttribute("aria-expanded")).toBe("true");
    await fireEvent.keyDown(notes, { key: "Escape" });
    expect(notes.getAttribute("aria-expanded")).toBe("false");
    expect(cockpit.place.zoom).toEqual({ first: 5, last: 20 });
  });

  it("tells when a chart is older than the moment looked at", async () => {
    await open([run("a")], "", { step: 20 });
    const alpha = await panel("alpha");
    expect((await alpha.findByTitle("Recorded last at this step")).textContent).toContain("20");
  });

  it("says that the loss is not finite, where it was recorded and is none", async () => {
    await open([run("a", { loss: null, quantities: [{ name: "loss", doc: "", settings: {} }] })]);
    expect(await screen.findByText("not finite")).toBeTruthy();
  });

  it("says why no run can be read", async () => {
    await open([run("x", { broken: "newer than this program" })]);
    expect(await screen.findByText("No run here can be read")).toBeTruthy();
  });

  it("hears of a run that died without a word", async () => {
    vi.useFakeTimers();
    try {
      const runs = [run("a", { status: "running" })];
      render(App, { cockpit: new Cockpit({ ...fakeApi(runs, asked), live: true, runs: async () => [...runs] }) });
      await vi.advanceTimersByTimeAsync(100);
      expect(screen.queryAllByText("running")).not.toHaveLength(0);
      runs[0] = run("a", { status: "interrupted" });
      await vi.advanceTimersByTimeAsync(20_000);
      expect(screen.queryAllByText("running")).toHaveLength(0);
      expect(screen.queryAllByText("interrupted")).not.toHaveLength(0);
    } finally {
      vi.useRealTimers();
    }
  });

  it("draws what came into view while the page was too busy to hear of it", async () => {
    class Late extends Seen {
      override observe() {
        this.tell([{ isIntersecting: false }, { isIntersecting: true }]);
      }
    }
    vi.stubGlobal("IntersectionObserver", Late);
    await open([run("a")]);
    await waitFor(() => expect(drawn()).toHaveLength(3));
  });

  it("shows what is missing instead of a chart", async () => {
    await open([run("a")], "", {
      missing: 'This run has no "alpha". To record it: Cockpit(config="full").',
      plots: [],
    });
    const alpha = await panel("alpha");
    expect((await alpha.findByText('Cockpit(config="full")')).tagName).toBe("CODE");
  });

  it("keeps markup in names as text", async () => {
    const name = "<img src=x onerror=alert(1)>";
    await open([run("a", { name })]);
    expect((await screen.findAllByText(name)).length).toBeGreaterThan(0);
    expect(document.querySelector("img")).toBeNull();
  });

  it("explains an instrument and goes back to its chart", async () => {
    await open([run("a")]);
    const alpha = await panel("alpha");
    await fireEvent.click(alpha.getByRole("button", { name: "How to read it" }));
    expect(alpha.getByText("Then there.")).toBeTruthy();
    await fireEvent.click(alpha.getByRole("button", { name: "Back to the chart" }));
    expect(alpha.queryByText("Then there.")).toBeNull();
  });
});

describe("time", () => {
  it("asks instruments that show a moment at once, the others a little later, and moves the cursor of all", async () => {
    await open([run("a")]);
    await waitFor(() => expect(drawn()).toHaveLength(3));
    asked.length = 0;
    await fireEvent.input(screen.getByRole("slider", { name: "Step" }), { target: { value: "10" } });
    await waitFor(() => expect(drawn()[0]!.step).toBe(10));
    expect(asked.map(({ instrument }) => instrument)).toEqual(["alpha"]);
    await waitFor(() => expect(drawn().map(({ step }) => step)).toEqual([10, 10, 10]));
    expect(asked.map(({ instrument }) => instrument)).toEqual(["alpha", "norms", "loss"]);
    expect(drawn().map(({ cursor }) => cursor)).toEqual([10, 10, 10]);
    await waitFor(() => expect(location.hash).toContain("step=10"));
  });

  it("walks over recorded steps by keys, and follows the run again beyond the last", async () => {
    const cockpit = await open([run("a")]);
    await waitFor(() => expect(drawn()).toHaveLength(3));
    await fireEvent.keyDown(window, { key: "ArrowLeft" });
    expect(cockpit.place.step).toBe(20);
    await fireEvent.keyDown(window, { key: "ArrowLeft", shiftKey: true });
    expect(cockpit.place.step).toBe(0);
    await fireEvent.keyDown(window, { key: "ArrowRight" });
    expect(cockpit.place.step).toBe(10);
    await fireEvent.keyDown(window, { key: "l" });
    expect(cockpit.place.step).toBeNull();
  });

  it("forgets the steps of a run that is no longer shown", async () => {
    const cockpit = await open([run("a"), run("b", { instruments: [], last_step: 30 })]);
    await waitFor(() => expect(drawn()).toHaveLength(3));
    cockpit.showRun("b");
    cockpit.moveBy(-1);
    await waitFor(() => expect(cockpit.place.step).toBe(29));
  });

  it("plays the run to its end", async () => {
    const cockpit = await open([run("a")]);
    await waitFor(() => expect(drawn()).toHaveLength(3));
    vi.useFakeTimers();
    try {
      await fireEvent.keyDown(window, { key: " " });
      const seen: (number | null)[] = [];
      for (let count = 0; count < 5; count++) {
        seen.push(cockpit.place.step);
        await vi.advanceTimersByTimeAsync(200);
      }
      expect(seen).toEqual([0, 10, 20, 30, null]);
    } finally {
      vi.useRealTimers();
    }
    expect(screen.getByRole("button", { name: "Play" })).toBeTruthy();
  });
});

describe("axes", () => {
  it("zooms all panels together at full resolution, and Escape shows all again", async () => {
    await open([run("a")]);
    await waitFor(() => expect(drawn()).toHaveLength(3));
    asked.length = 0;
    await fireEvent.click(screen.getByText("zoom loss"));
    await waitFor(() => expect(asked).toHaveLength(3));
    expect(asked.every(({ view }) => view.first === 5 && view.last === 15)).toBe(true);
    expect(drawn().every(({ zoom }) => (zoom as { first: number }).first === 5)).toBe(true);
    await fireEvent.keyDown(window, { key: "Escape" });
    await waitFor(() => expect(drawn()[0]!.zoom).toBeNull());
  });

  it("changes the scale of one panel only", async () => {
    await open([run("a")]);
    const loss = await panel("loss");
    await fireEvent.change(loss.getByRole("combobox"), { target: { value: "log" } });
    await waitFor(() => expect(drawn().map(({ yscale }) => yscale)).toEqual([null, null, "log"]));
  });
});

describe("layers", () => {
  it("narrows the panels that can be narrowed", async () => {
    await open([run("a")]);
    await fireEvent.click(await screen.findByRole("button", { name: /^weight/ }));
    await waitFor(() => expect(drawn().map(({ scope }) => scope)).toEqual(["", "3.weight", ""]));
    await fireEvent.click(screen.getByRole("button", { name: "Whole model" }));
    await waitFor(() => expect(drawn()[1]!.scope).toBe(""));
  });

  it("says why a layer is conspicuous, and filters", async () => {
    await open([run("a")]);
    expect(await screen.findByText("gradient is 40 × larger")).toBeTruthy();
    await fireEvent.input(screen.getByRole("searchbox", { name: "Filter layers" }), { target: { value: "weight" } });
    expect(screen.queryByText("gradient is 40 × larger")).toBeNull();
    expect(screen.getByText("3.weight")).toBeTruthy();
  });
});

describe("several runs", () => {
  const check = async (name: string) =>
    fireEvent.click(await screen.findByRole("checkbox", { name: `Show ${name} beside the others` }));

  it("lays curves over each other in the colours of their runs", async () => {
    await open([run("a"), run("b")]);
    await check("run b");
    await waitFor(() => expect(drawn().map(({ others }) => others)).toEqual([1, 1, 1]));
    expect(drawn()[0]!.colour).toMatch(/^#/);
    await waitFor(() => expect(location.hash).toContain("runs=a.b"));
  });

  it("shows what is not over steps one run at a time, where there is no room", async () => {
    await open([run("a"), run("b")], "", { plots: [plot([1, 2], false)] });
    await check("run b");
    const alpha = await panel("alpha");
    const other = await alpha.findByRole("button", { name: "run b" });
    expect(drawn().every(({ others }) => others === 0)).toBe(true);
    await fireEvent.click(other);
    expect(other.getAttribute("aria-pressed")).toBe("true");
  });

  it("stands them side by side when asked to", async () => {
    await open([run("a"), run("b")]);
    await check("run b");
    await fireEvent.click(screen.getByRole("button", { name: "side by side" }));
    await waitFor(() => expect(drawn()).toHaveLength(6));
  });

  it("tells in which settings they differ", async () => {
    await open([run("a"), run("b", { hyperparameters: { lr: 0.5, momentum: 0.9 } })], "#tab=compare");
    await check("run b");
    const row = await screen.findByRole("row", { name: /^lr/ });
    expect(
      within(row)
        .getAllByRole("cell")
        .map((cell) => cell.textContent),
    ).toEqual(["0.1", "0.5"]);
    expect(screen.queryByRole("row", { name: /^momentum/ })).toBeNull();
  });

  it("offers the other runs where only one is chosen", async () => {
    const cockpit = await open([run("a"), run("b")], "#tab=compare");
    await fireEvent.click(await screen.findByRole("button", { name: /^run b ?finished, loss 0.25/ }));
    expect(cockpit.chosen).toEqual(["a", "b"]);
  });

  it("have colours of their own, also when the address is changed by hand", async () => {
    const cockpit = await open([run("a"), run("b")]);
    await waitFor(() => expect(cockpit.chosen).toEqual(["a"]));
    location.hash = "#runs=a.b";
    await waitFor(() => expect(cockpit.chosen).toEqual(["a", "b"]));
    expect(cockpit.colourOf("a")).not.toBe(cockpit.colourOf("b"));
  });

  it("keeps its colour when another run leaves", async () => {
    const cockpit = await open([run("a"), run("b"), run("c")], "#runs=a.b.c");
    await waitFor(() => expect(cockpit.chosen).toHaveLength(3));
    const before = cockpit.colourOf("c");
    await check("run b");
    expect(cockpit.chosen).toEqual(["a", "c"]);
    expect(cockpit.colourOf("c")).toBe(before);
  });
});

describe("findings and events", () => {
  it("lead to their moment", async () => {
    const finding = {
      rule: "r",
      severity: "error",
      steps: [20, 25],
      scope: "3.weight",
      message: "It burns.",
      advice: "Stop.",
    } as const;
    const cockpit = await open([run("a", { findings: [{ ...finding, steps: [20, 25] }] })], "#tab=findings");
    await fireEvent.click(await screen.findByText("It burns."));
    expect(cockpit.place).toMatchObject({ step: 20, scope: "3.weight", tab: "primary" });
  });
});

describe("the address", () => {
  it("brings everything back", async () => {
    await open([run("a"), run("b")], "#runs=b&step=10&zoom=2~20&scope=3.weight&y=loss%3Alog");
    await waitFor(() => expect(drawn()).toHaveLength(3));
    expect(asked.every(({ id }) => id === "b")).toBe(true);
    expect(drawn()).toMatchObject([
      { step: 10 },
      { scope: "3.weight" },
      { yscale: "log", zoom: { first: 2, last: 20 } },
    ]);
  });

  it("of a run that is gone leads to one that is there", async () => {
    const cockpit = await open([run("a")], "#runs=gone");
    await waitFor(() => expect(cockpit.chosen).toEqual(["a"]));
  });
});

describe("keys", () => {
  it("choose screens, open the help and leave fields alone", async () => {
    const cockpit = await open([run("a")]);
    await waitFor(() => expect(drawn()).toHaveLength(3));
    await fireEvent.keyDown(window, { key: "2" });
    expect(cockpit.tab).toBe("findings");
    await fireEvent.keyDown(screen.getByRole("searchbox", { name: "Search runs" }), { key: "1" });
    expect(cockpit.tab).toBe("findings");
    await fireEvent.keyDown(window, { key: "?" });
    expect(screen.getByRole("dialog", { name: "Keyboard and help" })).toBeTruthy();
  });
});
