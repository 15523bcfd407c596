/** Walking over recorded steps: sorted, maybe thinned out. */

/** The next recorded step, or null beyond the last one. */
export function after(recorded: number[], step: number, last: number): number | null {
  const next = recorded.find((other) => other > step) ?? (recorded.length ? last : step + 1);
  return next > step && next <= last ? next : null;
}

/** The recorded step before, or the first one. */
export function before(recorded: number[], step: number): number {
  return (
    recorded.findLast((other) => other < step) ??
    (recorded.length ? Math.min(recorded[0]!, step) : Math.max(0, step - 1))
  );
}

/** All steps that occur in any of the lists. Each may be thinned out, and each differently. */
export function union(lists: Iterable<readonly (number | null)[]>): number[] {
  const all = new Set<number>();
  for (const list of lists) for (const step of list) if (step !== null) all.add(step);
  return [...all].sort((one, other) => one - other);
}
