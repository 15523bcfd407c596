import { describe, expect, it } from "vitest";

import type { Mark, Plot } from "../../src/lib/chart";
import { frameOf } from "../../src/marks/frame";
import { hoverAt, nearest } from "../../src/marks/hover";
import { drawn } from "../../src/marks/series";
import { axis, bars, line, noise, plot, range, steps } from "./samples";

function at(one: Plot, x: number, y: number, smoothing = 0) {
  const frame = frameOf(one, 400, 200);
  return hoverAt(frame, one, drawn(one, [], "dark"), "dark", frame.x.at(x), frame.y.at(y), smoothing);
}

it("the nearest point is the nearest, for all pointers", () => {
  const random = noise(9);
  const x = range(60)
    .map(() => 500 * random())
    .sort((a, b) => a - b);
  const frame = frameOf(plot([line("a", x, x)], { x: steps }), 400, 200);
  for (let pixel = 0; pixel < 400; pixel += 3) {
    const best = Math.min(...x.map((value) => Math.abs(frame.x.at(value) - pixel)));
    expect(Math.abs(frame.x.at(x[nearest(x, frame.x, pixel)]!) - pixel)).toBeCloseTo(best, 9);
  }
  expect(nearest([], frame.x, 10)).toBe(-1);
});

describe("under the pointer", () => {
  it("are the values of all lines at the nearest step", () => {
    const one = plot([line("loss", [0, 50, 100], [3, 2, 1]), line("other", [0, 50, 100], [1, null, 1])], {
      x: steps,
    });
    const found = at(one, 52, 2)!;
    expect(found.heading).toBe("step 50");
    expect(found.rows.map(({ label, text }) => [label, text])).toEqual([
      ["loss", "2"],
      ["other", "not finite"],
    ]);
    expect(found.dots).toHaveLength(1);
  });

  it("is the average too, where it is drawn", () => {
    const one = plot([line("loss", [0, 1], [2, 4], { smooth: true })], { x: steps });
    expect(at(one, 1, 3, 0.5)!.rows[0]).toMatchObject({ text: "4", aside: "average 3.333" });
    expect(at(one, 1, 3, 0)!.rows[0]).toMatchObject({ text: "4", aside: "" });
  });

  it("is a line's own step where it has none there", () => {
    const one = plot([line("a", [0, 50, 100], [1, 1, 1]), line("b", [0, 45], [1, 2])], { x: steps });
    expect(at(one, 50, 1)!.rows[1]).toMatchObject({ text: "2", aside: "at step 45" });
  });

  it("is what happened, from close by, and not all of it", () => {
    const events: Mark = {
      kind: "ticks",
      label: "not finite",
      at: [50],
      texts: ["NaN in conv1"],
      tone: "bad",
    };
    const one = plot([line("a", [0, 100], [1, 2]), events], { x: steps });
    expect(at(one, 50, 1)!.rows.at(-1)).toMatchObject({ label: "not finite", text: "NaN in conv1" });
    expect(at(one, 60, 1)).toBeNull();
    const many: Mark = { ...events, at: range(20, 50, 0.01), texts: range(20).map(String) };
    expect(at(plot([line("a", [0, 100], [1, 2]), many], { x: steps }), 50, 1)!.rows.at(-1)!.text).toBe(
      "and 16 more",
    );
  });

  it("is a bar's stretch and height", () => {
    expect(at(plot([bars("count", [0, 1, 2], [3, 5])]), 1.5, 1)!.rows[0]!.text).toBe("1 to 2: 5");
    expect(at(plot([bars("count", [0, 1, 2], [3, 5], { flat: true })]), 1, 0.5)!.rows[0]!.text).toBe(
      "0 to 1: 3",
    );
  });

  it("is a cell of a map, by names and steps where it has them", () => {
    const heat: Mark = {
      kind: "heat",
      label: "norm",
      x: [0, 10, 20],
      y: [0, 1, 2],
      values: [
        [1, 2],
        [3, null],
      ],
      scale: "linear",
    };
    const map = plot([heat], { x: steps, y: axis({ names: ["conv", "fc"] }) });
    expect(at(map, 15, 0.5)!.rows.map(({ text }) => text)).toEqual(["10 to 19", "conv", "2"]);
    expect(at(map, 15, 1.5)!.rows[2]!.text).toBe("none");
    expect(at(plot([heat]), 5, 1.5)!.rows.map(({ text }) => text)).toEqual(["0 to 10", "1 to 2", "3"]);
  });

  it("is the size of discs and zones", () => {
    const one = plot(
      [
        { kind: "disc", radius: 0.5, label: "norm", tone: "first" },
        { kind: "zone", axis: "x", low: -1, high: 1, label: "across", tone: "second" },
      ],
      { x: axis({ range: [-2, 2] }), y: axis({ range: [-2, 2] }) },
    );
    expect(at(one, 0, 0)!.rows.map(({ text }) => text)).toEqual(["radius 0.5", "−1 to 1"]);
    expect(at(one, 1.5, 0)!.rows.map(({ text }) => text)).toEqual(["radius 0.5"]);
  });

  it("is nothing far from all points", () => {
    expect(at(plot([line("a", [0, 1, 100], [1, 1, 1])], { x: steps }), 50, 1)).toBeNull();
    expect(at(plot([]), 0.5, 0.5)).toBeNull();
  });
});
