/** Moving averages of noisy lines. */

import type { Value } from "./chart";

/**
 * The exponential moving average, freed of its bias towards the first values; gaps stay gaps.
 *
 * `weight` is that of the past for points at the usual distance; where points are further apart, as in thinned-out
 * lines, the past weighs correspondingly less.
 */
export function smoothed(x: readonly Value[], y: readonly Value[], weight: number): Value[] {
  const usual = usualDistance(x);
  let average = 0;
  let mass = 0;
  let before: number | null = null;
  return y.map((value, index) => {
    const at = x[index] ?? null;
    if (value === null || at === null) return null;
    // A step that occurs twice, as after a restart, counts like any other.
    const distance = before === null || !(usual > 0) ? 1 : Math.abs(at - before) / usual || 1;
    const past = weight ** distance;
    average = past * average + (1 - past) * value;
    mass = past * mass + (1 - past);
    before = at;
    return mass > 0 ? average / mass : value;
  });
}

/** The median distance of neighbouring points, from at most a hundred of them; 0 if there are none. */
function usualDistance(x: readonly Value[]): number {
  const stride = Math.ceil(x.length / 100);
  const found: number[] = [];
  for (let index = 1; index < x.length; index += stride) {
    const [before, at] = [x[index - 1] ?? null, x[index] ?? null];
    if (before !== null && at !== null) found.push(Math.abs(at - before));
  }
  found.sort((a, b) => a - b);
  return found[Math.floor(found.length / 2)] ?? 0;
}
