/** Which hue a column of a screen has: as in the paper's figure, by the group of its instruments. */

import type { columns } from "./palette";

export type Hue = keyof (typeof columns)["dark"];

const HUES: Record<string, Hue> = {
  "step size": "blue",
  gradients: "orange",
  curvature: "green",
  auxiliary: "blue",
  layers: "orange",
};

export function hueOf(group: string | undefined): Hue {
  return HUES[group ?? ""] ?? "grey";
}
