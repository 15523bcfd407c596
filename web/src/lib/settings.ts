/** Preferences that outlive the page. Storage may be forbidden, as in a notebook's frame; then they live in memory. */

export function recall(name: string): string | null {
  try {
    return localStorage.getItem(`cockpit.${name}`);
  } catch {
    return null;
  }
}

export function keep(name: string, value: string): void {
  try {
    localStorage.setItem(`cockpit.${name}`, value);
  } catch {
    // Nothing to do: the choice holds until the page is closed.
  }
}
