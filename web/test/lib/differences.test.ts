import { describe, expect, it } from "vitest";
import { differences, outcomes } from "../../src/lib/differences";
import { run } from "../fixtures";

describe("what sets runs apart", () => {
  it("is only what is not the same in all, or absent in some", () => {
    const found = differences([
      run("a", { hyperparameters: { lr: 0.1, momentum: 0.9 } }),
      run("b", { hyperparameters: { lr: 0.001, momentum: 0.9, nesterov: true } }),
    ]);
    expect(found.lines).toEqual([
      { name: "lr", values: ["0.1", "0.001"] },
      { name: "nesterov", values: ["–", "true"] },
    ]);
    expect(found.same).toBe(5);
  });

  it("is nothing for equal runs", () => {
    expect(differences([run("a"), run("b")]).lines).toEqual([]);
  });

  it("tells how they came out", () => {
    const lines = Object.fromEntries(outcomes([run("a")]).map(({ name, values }) => [name, values[0]]));
    expect(lines).toMatchObject({ "last loss": "0.25", time: "1 m 30 s", "overhead of watching": "3.4 %" });
  });
});
