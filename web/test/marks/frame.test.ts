import { describe, expect, it } from "vitest";

import { frameOf } from "../../src/marks/frame";
import { axis, bars, line, plot, range, samples, steps } from "./samples";

const curve = plot([line("value", [0, 100], [1, 3])], { x: steps });

describe("a frame", () => {
  it.each(
    samples.flatMap(({ name, plots }) => plots.map((one, index) => [`${name} ${index}`, one] as const)),
  )("%s: a box inside the canvas, ticks inside the box", (_, one) => {
    for (const [width, height] of [
      [390, 220],
      [120, 60],
      [1200, 700],
    ] as const) {
      const { box, x, y } = frameOf(one, width, height);
      expect(box.left).toBeGreaterThanOrEqual(0);
      expect(box.left + box.width).toBeLessThanOrEqual(width);
      expect(box.top + box.height).toBeLessThanOrEqual(height);
      for (const { at } of x.ticks) {
        expect(x.at(at)).toBeGreaterThanOrEqual(box.left - 0.01);
        expect(x.at(at)).toBeLessThanOrEqual(box.left + box.width + 0.01);
      }
      for (const { at } of y.ticks) {
        expect(y.at(at)).toBeGreaterThanOrEqual(box.top - 0.01);
        expect(y.at(at)).toBeLessThanOrEqual(box.top + box.height + 0.01);
      }
      const [left, bottom] = [x.value(box.left), y.value(box.top + box.height)];
      expect(x.at(left)).toBeCloseTo(box.left, 4);
      expect(y.at(bottom)).toBeCloseTo(box.top + box.height, 4);
    }
  });

  it("runs over all steps, or over those zoomed into", () => {
    expect(frameOf(curve, 400, 200).x).toMatchObject({ low: 0, high: 100 });
    expect(frameOf(curve, 400, 200, { zoom: { first: 10, last: 20 } }).x).toMatchObject({
      low: 10,
      high: 20,
    });
    const other = plot([line("value", [50, 300], [1, 3])], { x: steps });
    const overlay = [{ label: "other", colour: "#000000", plot: other }];
    expect(frameOf(curve, 400, 200, { overlay }).x).toMatchObject({ low: 0, high: 300 });
  });

  it("reaches the end of the longest run, and further where its marks do", () => {
    const extent = { first: 0, last: 150 };
    expect(frameOf(curve, 400, 200, { extent }).x).toMatchObject({ low: 0, high: 150 });
    expect(frameOf(curve, 400, 200, { extent: { first: 0, last: 50 } }).x).toMatchObject({ low: 0, high: 100 });
    expect(frameOf(curve, 400, 200, { extent, zoom: { first: 10, last: 20 } }).x).toMatchObject({ low: 10, high: 20 });
    expect(frameOf({ ...curve, x: axis() }, 400, 200, { extent }).x).toMatchObject({ low: 0, high: 100 });
  });

  it("leaves out what all long names begin with, up to a dot", () => {
    const labels = (names: string[]) =>
      frameOf(plot([], { y: { ...axis(), names } }), 400, 200).y.ticks.map(({ label }) => label);
    expect(labels(["encoder.blocks.11.attention.qkv", "encoder.blocks.12.attention.out"])).toEqual([
      "…11.attention.qkv",
      "…12.attention.out",
    ]);
    expect(labels(["encoder.a", "encoder.b"])).toEqual(["encoder.a", "encoder.b"]);
  });

  it("fits heights to the steps shown", () => {
    const steep = plot([line("value", range(101), range(101))], { x: steps });
    const { y } = frameOf(steep, 400, 200, { zoom: { first: 10, last: 20 } });
    expect(y.low).toBeLessThanOrEqual(10);
    expect(y.low).toBeGreaterThan(5);
    expect(y.high).toBeLessThan(25);
    const beyond = frameOf(steep, 400, 200, { zoom: { first: 200, last: 300 } });
    expect(beyond.y.high).toBeGreaterThan(100);
  });

  it("is not zoomed where x counts no steps", () => {
    const { x } = frameOf({ ...curve, x: axis() }, 400, 200, { zoom: { first: 10, last: 20 } });
    expect(x).toMatchObject({ low: 0, high: 100 });
  });

  it("keeps step 0 on a log scale", () => {
    const { x } = frameOf(curve, 400, 200, { xscale: "log" });
    expect(x.at(0)).toBeLessThan(x.at(1));
    expect(x.at(10) - x.at(1)).toBeGreaterThan(x.at(100) - x.at(60));
  });

  it("has room for the widest label, and for what others need", () => {
    const wide = frameOf(plot([line("value", [0, 1], [1e-9, 1.0001e-9])], { x: steps }), 400, 200).box.left;
    expect(wide).toBeGreaterThan(frameOf(curve, 400, 200).box.left);
    expect(frameOf(curve, 400, 200, { gutters: { left: 90 } }).box.left).toBe(90);
  });

  it("is square where shapes keep their proportions", () => {
    const { box } = frameOf({ ...curve, upright: true }, 400, 200);
    expect(box.width).toBe(box.height);
  });

  it("takes a given range, unless the scale has no place for it", () => {
    const given = { ...curve, y: axis({ range: [0, 10] }) };
    expect(frameOf(given, 400, 200).y).toMatchObject({ low: 0, high: 10 });
    const { y } = frameOf(given, 400, 200, { yscale: "log" });
    expect(y.value(200)).toBeGreaterThan(0);
    expect(Number.isFinite(y.low)).toBe(true);
  });

  it("knows when a scale shows nothing", () => {
    const negative = plot([line("value", [0, 1], [-1, -2])], { x: steps });
    const why = (one: typeof negative, yscale: "log" | null = null) =>
      frameOf(one, 400, 200, { yscale }).empty;
    expect(why(negative)).toBe("");
    expect(why(negative, "log")).toContain("no positive values");
    expect(why(plot([]))).toBe("");
    expect(why(plot([{ kind: "guide", axis: "x", at: 1, label: "", tone: "bad" }]))).toBe("no values");
    expect(why(plot([bars("count", [0, 1, 2], [0, null])]))).toBe("nothing but zeros");
    expect(why(plot([line("value", [0, 1], [0, 0])], { x: steps }))).toBe("");
    expect(why(plot([line("value", [0, 1], [null, null])], { x: steps }))).toBe("no finite values");
    expect(why(plot([bars("count", [0, 1], [null])]))).toBe("no finite values");
    expect(
      why(plot([{ kind: "heat", label: "", x: [0, 1], y: [0, 1], values: [[null]], scale: "log" }])),
    ).toBe("no finite values");
    expect(why(plot([{ kind: "disc", radius: null, label: "", tone: "first" }]))).toBe("no finite values");
    expect(why(plot([line("value", [0, 1], [-1, -2], { right: true })], { right: axis() }))).toBe("");
  });

  it("begins bars at zero on the axis of their heights", () => {
    const upright = frameOf(plot([bars("count", [0, 1, 2], [3, 5])]), 400, 200);
    expect(upright.y.low).toBe(0);
    const flat = frameOf(plot([bars("count", [0, 1, 2], [3, 5], { flat: true })]), 400, 200);
    expect(flat.x.low).toBe(0);
    expect([flat.y.low, flat.y.high]).toEqual([0, 2]);
  });

  it("gives each name a unit", () => {
    const names = ["a", "b", "c"];
    const { y } = frameOf(
      plot([bars("norm", range(4), [1, 2, 3], { flat: true })], { y: axis({ names }) }),
      400,
      200,
    );
    expect(y.ticks).toEqual([
      { at: 0.5, label: "a" },
      { at: 1.5, label: "b" },
      { at: 2.5, label: "c" },
    ]);
    expect([y.low, y.high]).toEqual([0, 3]);
  });
});
