import { describe, expect, it } from "vitest";
import type { Layer } from "../../src/lib/api";
import { rows } from "../../src/lib/layerTree";

const layer = (name: string, parent: string): Layer => ({
  name,
  parent,
  kind: "layer",
  size: 1,
  score: 0,
  why: "",
  grad_norm: null,
  update: null,
});
const few = [layer("b", ""), layer("b.w", "b"), layer("a", ""), layer("a.x", "a"), layer("a.x.w", "a.x")];
const shown = (layers: Layer[], words = "", turned: string[] = []) =>
  rows(layers, words, new Set(turned)).map(({ layer, depth }) => `${"  ".repeat(depth)}${layer.name}`);

describe("the tree of layers", () => {
  it("keeps the order of siblings, each with its own below it", () => {
    expect(shown(few)).toEqual(["b", "  b.w", "a", "  a.x", "    a.x.w"]);
  });

  it("closes and opens by hand", () => {
    expect(shown(few, "", ["a"])).toEqual(["b", "  b.w", "a"]);
  });

  it("is closed at first when there are many", () => {
    const many = [layer("a", ""), ...Array.from({ length: 40 }, (_, index) => layer(`a.${index}`, "a"))];
    expect(shown(many)).toEqual(["a"]);
    expect(shown(many, "", ["a"])).toHaveLength(41);
  });

  it("shows what contains the words, without parents", () => {
    expect(shown(few, " .W ")).toEqual(["b.w", "a.x.w"]);
  });

  it("shows layers whose parent is not listed, and never itself below itself", () => {
    expect(shown([layer("p.w", "p"), layer("q", "q"), layer("", "")])).toEqual(["p.w", "q"]);
  });
});
