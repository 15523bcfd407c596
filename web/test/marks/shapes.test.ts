import { describe, expect, it } from "vitest";

import type { Bars } from "../../src/lib/chart";
import { frameOf } from "../../src/marks/frame";
import { discPath, rectangles } from "../../src/marks/shapes";
import { axis, bars, plot } from "./samples";

const even = axis({ range: [-2, 2] });

describe("a disc", () => {
  it("is round on linear axes", () => {
    const frame = frameOf(plot([], { x: even, y: even, upright: true }), 300, 300);
    const radius = frame.x.at(1) - frame.x.at(0);
    for (const [x, y] of discPath(frame, 1)) {
      expect(Math.hypot(x - frame.x.at(0), y - frame.y.at(0))).toBeCloseTo(radius, 6);
    }
  });

  it("meets the axes at its radius on symlog axes, and bulges between them", () => {
    const symlog = axis({ scale: "symlog", linear: 0.1, range: [-2, 2] });
    const frame = frameOf(plot([], { x: symlog, y: symlog, upright: true }), 300, 300);
    const path = discPath(frame, 1, 8);
    const radius = frame.x.at(1) - frame.x.at(0);
    expect(path[0]![0]).toBeCloseTo(frame.x.at(1), 6);
    expect(path[2]![1]).toBeCloseTo(frame.y.at(1), 6);
    expect(path[2]![1]).toBeLessThan(frame.y.at(0));
    expect(Math.hypot(path[1]![0] - frame.x.at(0), path[1]![1] - frame.y.at(0))).toBeGreaterThan(
      1.1 * radius,
    );
  });
});

describe("bars", () => {
  const mark = bars("count", [0, 1, 3], [2, 4]) as Bars;

  it("stand on zero between their edges", () => {
    const frame = frameOf(plot([mark]), 400, 200);
    const [one, two] = rectangles(frame, mark);
    const base = frame.box.top + frame.box.height;
    expect(one!.y + one!.height).toBeCloseTo(base, 6);
    expect(two!.height).toBeCloseTo(2 * one!.height, 6);
    expect(two!.width).toBeCloseTo(2 * one!.width, 6);
    expect(two!.x).toBeCloseTo(one!.x + one!.width, 6);
  });

  it("lie on their side if flat", () => {
    const flat = { ...mark, flat: true };
    const frame = frameOf(plot([flat]), 400, 200);
    const [one, two] = rectangles(frame, flat);
    expect(one!.x).toBeCloseTo(frame.box.left, 6);
    expect(two!.width).toBeCloseTo(2 * one!.width, 6);
    expect(one!.y).toBeGreaterThan(two!.y);
  });

  it("without a place on a log axis are left out; the others stand on its end", () => {
    const log = { ...mark, heights: [0, 100] };
    const frame = frameOf(plot([log], { y: axis({ scale: "log" }) }), 400, 200);
    const [one, two] = rectangles(frame, log);
    expect(one).toBeNull();
    expect(two!.y + two!.height).toBeCloseTo(frame.box.top + frame.box.height, 6);
    expect(two!.height).toBeGreaterThan(10);
  });

  it("may hang below zero", () => {
    const down = { ...mark, heights: [-2, 2] };
    const frame = frameOf(plot([down]), 400, 200);
    const [one, two] = rectangles(frame, down);
    expect(one!.y).toBeCloseTo(frame.y.at(0), 6);
    expect(two!.y + two!.height).toBeCloseTo(frame.y.at(0), 6);
  });
});
