import { describe, expect, it } from "vitest";

import { frameOf } from "../../src/marks/frame";
import { drawn } from "../../src/marks/series";
import { lonely, sameStrokes, sheetOf } from "../../src/marks/steps";
import { axis, line, plot, range, steps } from "./samples";

function sheet(marks: ReturnType<typeof line>[], smoothing = 0, scale: "linear" | "log" = "linear") {
  const one = plot(marks, { x: steps, y: axis({ scale }), right: axis() });
  return sheetOf(frameOf(one, 400, 200), drawn(one, [], "dark"), smoothing);
}

describe("lines over steps", () => {
  it("share one column of steps; what is no step of a line is no gap in it", () => {
    const { data } = sheet([line("a", [0, 2, 4], [1, null, 3]), line("b", [0, 1], [5, 6], { right: true })]);
    expect(data).toEqual([
      [0, 1, 2, 4],
      [1, undefined, null, 3],
      [5, 6, undefined, undefined],
    ]);
  });

  it("are drawn on a straight scale; what has no place there is a gap", () => {
    expect(sheet([line("a", [0, 1, 2], [10, -1, 100])], 0, "log").data[1]).toEqual([1, null, 2]);
  });

  it("ascend even if a run went back", () => {
    expect(sheet([line("a", [0, 1, 2, 1, 2, 3], [0, 1, 2, 10, 20, 30])]).data).toEqual([
      [0, 1, 2, 3],
      [0, 10, 20, 30],
    ]);
  });

  it("get an average above their faint raw line if they are noisy", () => {
    const noisy = line("a", range(100), range(100), { smooth: true });
    const still = line("b", range(100), range(100), { tone: "second" });
    expect(sheet([noisy, still], 0).strokes).toHaveLength(2);
    const { strokes, data } = sheet([noisy, still], 0.9);
    expect(strokes).toHaveLength(3);
    expect(strokes[0]!.colour).toMatch(/^rgba/);
    expect(strokes[2]!.width).toBeGreaterThan(strokes[0]!.width);
    expect(data[3]![50]).toBeLessThan(50);
  });

  it("have dots where they are sparse", () => {
    expect(sheet([line("a", range(10), range(10))]).strokes[0]!.dots).toBe(true);
    expect(sheet([line("a", range(1000), range(1000))]).strokes[0]!.dots).toBe(false);
  });

  it("may be none", () => expect(sheet([]).data).toEqual([[]]));
});

it("points between gaps are found", () => {
  expect(lonely([1, null, 2, null, 3, 4, null, undefined, 5])).toEqual([0, 2, 8]);
  expect(lonely([1, 2, undefined, 3])).toBeNull();
  expect(lonely([undefined, 1, undefined])).toEqual([1]);
});

it("new numbers alone need no new drawing", () => {
  const one = sheet([line("a", range(300), range(300))]);
  expect(sameStrokes(one, sheet([line("a", range(300), range(300, 5))]))).toBe(true);
  expect(sameStrokes(one, sheet([line("a", range(300), range(300), { tone: "bad" })]))).toBe(false);
});
