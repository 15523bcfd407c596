import { expect, it } from "vitest";

import { besideColumns, besideRows, LABEL_HEIGHT } from "../../src/marks/labels";
import { noise, range } from "./samples";

const wanted = (at: number, width = 40) => ({ text: String(at), colour: "#000000", width, at });

it("rows never touch and stay inside, wherever the guides lie", () => {
  const random = noise(2);
  for (let count = 0; count < 200; count++) {
    const guides = range(1 + Math.floor(5 * random())).map(() => wanted(10 + 180 * random()));
    const places = besideRows(guides, 300, 10, 190).map(({ y }) => y);
    places.forEach((y, index) => {
      expect(y).toBeGreaterThanOrEqual(10 + LABEL_HEIGHT / 2 - 0.01);
      expect(y).toBeLessThanOrEqual(190 - LABEL_HEIGHT / 2 + 0.01);
      if (index) expect(y - places[index - 1]!).toBeGreaterThanOrEqual(LABEL_HEIGHT - 0.01);
    });
  }
});

it("a lone label stands just above its guide, or below it at the top", () => {
  expect(besideRows([wanted(100)], 300, 10, 190)[0]!.y).toBeLessThan(100 - LABEL_HEIGHT / 2);
  expect(besideRows([wanted(12)], 300, 10, 190)[0]!.y).toBeGreaterThan(12 + LABEL_HEIGHT / 2);
});

it("columns take another row where they would touch, and turn to the left at the edge", () => {
  const random = noise(4);
  for (let count = 0; count < 200; count++) {
    const guides = range(5).map(() => wanted(300 * random(), 20 + 60 * random()));
    const sorted = [...guides].sort((a, b) => a.at - b.at);
    const labels = besideColumns(guides, 0, 300, 10).map((label, index) => ({
      ...label,
      width: sorted[index]!.width,
    }));
    for (const one of labels) {
      expect(one.x).toBeGreaterThanOrEqual(0);
      expect(one.x + one.width).toBeLessThanOrEqual(300);
      for (const other of labels) {
        if (one === other || one.y !== other.y) continue;
        expect(one.x + one.width <= other.x || other.x + other.width <= one.x).toBe(true);
      }
    }
  }
});
