/** The layers as rows of a tree, in the order the server gives them: conspicuous ones first. */

import type { Layer } from "./api";

export interface Row {
  layer: Layer;
  depth: number;
  children: number;
  open: boolean;
}

/** Up to so many layers are all open at first. */
const FEW = 24;

/**
 * The rows to show. With words to look for: all layers that contain them, without their parents. `turned` holds the
 * layers that were opened or closed by hand.
 */
export function rows(layers: Layer[], words: string, turned: ReadonlySet<string>): Row[] {
  const wanted = words.trim().toLowerCase();
  if (wanted)
    return layers
      .filter((layer) => layer.name.toLowerCase().includes(wanted))
      .map((layer) => ({ layer, depth: 0, children: 0, open: false }));
  const names = new Set(layers.map((layer) => layer.name));
  const below = new Map<string, Layer[]>();
  for (const layer of layers) {
    const parent = layer.parent !== layer.name && names.has(layer.parent) ? layer.parent : "";
    const siblings = below.get(parent);
    if (siblings) siblings.push(layer);
    else below.set(parent, [layer]);
  }
  const found: Row[] = [];
  const walk = (parent: string, depth: number) => {
    for (const layer of below.get(parent) ?? []) {
      // The model itself may be listed under the empty name: it is the root, not a row.
      if (layer.name === "") continue;
      const children = below.get(layer.name)?.length ?? 0;
      const open = children > 0 && layers.length <= FEW !== turned.has(layer.name);
      found.push({ layer, depth, children, open });
      if (open) walk(layer.name, depth + 1);
    }
  };
  walk("", 0);
  return found;
}
