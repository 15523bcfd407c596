import { cleanup, fireEvent, render } from "@testing-library/svelte";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import type { Chart, Plot } from "../../src/lib/chart";
import ChartView from "../../src/marks/ChartView.svelte";
import PlotView from "../../src/marks/PlotView.svelte";
import { calls, stubCanvas } from "./canvas";
import { bars, chart, line, plot, range, samples, steps } from "./samples";

beforeEach(stubCanvas);
afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

const curve = plot([line("loss", range(101), range(101))], { x: steps });
const settled = () => new Promise((resolve) => setTimeout(resolve));

describe.each(["dark", "light"] as const)("charts in the %s theme", (theme) => {
  it.each(samples.map((sample) => [sample.name, sample] as const))(
    "%s: drawn without errors",
    async (_, sample) => {
      const { container } = render(ChartView, {
        chart: sample,
        theme,
        smoothing: 0.6,
        cursor: 10,
        height: 240,
      });
      await settled();
      expect(container.querySelectorAll("canvas")).toHaveLength(sample.plots.length);
      expect(calls.stroke).toBeGreaterThan(0);
      expect(calls.fillText).toBeGreaterThan(0);
    },
  );

  it.each(samples.map((sample) => [sample.name, sample] as const))(
    "%s: with another run, scales and a zoom",
    async (_, sample) => {
      const overlay = [{ label: "other", colour: "#e69f00", chart: sample }];
      for (const scale of ["log", "symlog"] as const) {
        const { container, unmount } = render(ChartView, {
          chart: sample,
          theme,
          overlay,
          label: "own",
          colour: "#56b4e9",
          xscale: scale,
          yscale: scale,
          zoom: { first: 20, last: 60 },
        });
        await settled();
        expect(container.querySelector("canvas")).not.toBeNull();
        unmount();
      }
    },
  );
});

describe("a chart", () => {
  it("without plots is empty", () => {
    const { container } = render(ChartView, { chart: chart("empty", []) });
    expect(container.querySelector("canvas")).toBeNull();
  });

  it("keeps its canvas when new numbers come, and draws them", async () => {
    const view = render(PlotView, { plot: curve });
    await settled();
    const canvas = view.container.querySelector("canvas");
    const before = calls.stroke ?? 0;
    await view.rerender({ plot: plot([line("loss", range(120), range(120))], { x: steps }) });
    await settled();
    expect(view.container.querySelector("canvas")).toBe(canvas);
    expect(calls.stroke).toBeGreaterThan(before);
    await view.rerender({ plot: plot([...curve.marks, line("more", [0, 1], [0, 1])], { x: steps }) });
    await settled();
    expect(view.container.querySelectorAll("canvas")).toHaveLength(1);
  });

  it("changes from lines over steps to a painted plot", async () => {
    const view = render(PlotView, { plot: curve });
    await view.rerender({ plot: plot([bars("count", [0, 1], [1])]) });
    await settled();
    expect(view.container.querySelectorAll("canvas")).toHaveLength(1);
    expect(view.container.querySelector(".uplot")).toBeNull();
  });
});

describe("the pointer", () => {
  async function mounted(given: Plot, more: Record<string, unknown> = {}) {
    const view = render(PlotView, { plot: given, height: 200, ...more });
    await settled();
    return { ...view, stage: view.container.querySelector<HTMLElement>(".stage")! };
  }

  // jsdom knows no PointerEvent with coordinates.
  const pointer = (stage: HTMLElement, type: string, clientX: number, clientY = 100) =>
    fireEvent(stage, new MouseEvent(type, { clientX, clientY, button: 0, bubbles: true }));

  it("shows values, tells the step, and draws a hair in other plots", async () => {
    const onhover = vi.fn();
    const { stage, container } = await mounted(curve, { onhover });
    const second = await mounted(curve);
    await pointer(stage, "pointermove", 200);
    expect(container.querySelector(".tooltip")?.textContent).toContain("loss");
    expect(onhover.mock.lastCall![0]).toBeGreaterThan(20);
    expect(second.container.querySelector(".hair")).not.toBeNull();
    await pointer(stage, "pointerleave", 500);
    expect(container.querySelector(".tooltip")).toBeNull();
    expect(onhover.mock.lastCall).toEqual([null]);
    expect(second.container.querySelector(".hair")).toBeNull();
  });

  it("zooms to what it drags over, and back by a double click", async () => {
    const onzoom = vi.fn();
    const { stage } = await mounted(curve, { onzoom });
    await pointer(stage, "pointerdown", 250);
    await pointer(stage, "pointermove", 150);
    await pointer(stage, "pointerup", 150);
    const [first, last] = onzoom.mock.lastCall as [number, number];
    expect(first).toBeGreaterThan(0);
    expect(first).toBeLessThan(last);
    expect(last).toBeLessThan(100);
    await pointer(stage, "dblclick", 150);
    expect(onzoom.mock.lastCall).toEqual([null, null]);
  });

  it("does not zoom by a click, nor where x counts no steps", async () => {
    const onzoom = vi.fn();
    const { stage } = await mounted(curve, { onzoom });
    await pointer(stage, "pointerdown", 150);
    await pointer(stage, "pointerup", 151);
    const still = await mounted(plot([bars("count", [0, 1], [1])]), { onzoom });
    await pointer(still.stage, "pointerdown", 150);
    await pointer(still.stage, "pointermove", 250);
    await pointer(still.stage, "pointerup", 250);
    expect(onzoom).not.toHaveBeenCalled();
  });

  it("has text nodes only: names cannot become markup", async () => {
    const evil: Chart["plots"][number] = plot(
      [line("<img src=x>", range(9), range(9)), line("b", range(9), range(9))],
      { x: steps },
    );
    const { stage, container } = await mounted(evil);
    await pointer(stage, "pointermove", 200);
    expect(container.querySelector("img")).toBeNull();
    expect(container.textContent).toContain("<img src=x>");
  });
});

it("the step of the time bar is marked where it is shown", async () => {
  const view = render(PlotView, { plot: curve, cursor: 50 });
  await settled();
  expect(view.container.querySelector(".now")).not.toBeNull();
  await view.rerender({ cursor: 50, zoom: { first: 0, last: 20 } });
  expect(view.container.querySelector(".now")).toBeNull();
});
