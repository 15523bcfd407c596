/** Keys: what they do, in one table, which the help shows as it is. */

import type { Replay } from "./replay.svelte";
import type { Cockpit } from "./state.svelte";

export interface Controls {
  cockpit: Cockpit;
  replay: Replay;
  search(): void;
  help(): void;
}

interface Key {
  shown: string;
  does: string;
  /** Tells whether it was this key, and acts. */
  press(event: KeyboardEvent, on: Controls): boolean;
}

const key = (name: string, act: (on: Controls) => void) => (event: KeyboardEvent, on: Controls) => {
  if (event.key.toLowerCase() !== name.toLowerCase()) return false;
  act(on);
  return true;
};

const arrow = (name: string, way: 1 | -1) => (event: KeyboardEvent, on: Controls) => {
  if (event.key !== name) return false;
  on.cockpit.moveBy(event.shiftKey ? 10 * way : way);
  return true;
};

export const KEYS: Key[] = [
  { shown: "←", does: "one recorded step back; with Shift ten", press: arrow("ArrowLeft", -1) },
  { shown: "→", does: "one recorded step on; with Shift ten", press: arrow("ArrowRight", 1) },
  { shown: "Space", does: "play or pause the replay", press: key(" ", (on) => on.replay.toggle()) },
  { shown: "L", does: "live: follow the newest step", press: key("l", (on) => on.cockpit.goTo(null)) },
  {
    shown: "1 – 5",
    does: "choose a screen",
    press(event, on) {
      const tab = /^[1-9]$/.test(event.key) ? on.cockpit.tabs[Number(event.key) - 1] : undefined;
      if (tab) on.cockpit.place.tab = tab.name;
      return tab !== undefined;
    },
  },
  { shown: "/", does: "search the runs", press: key("/", (on) => on.search()) },
  { shown: "?", does: "this help", press: key("?", (on) => on.help()) },
  {
    shown: "Esc",
    does: "close what is open; show all steps again",
    press: key("Escape", (on) => on.cockpit.zoomTo(null)),
  },
];

/** Act on a key, unless it belongs to what has the focus. */
export function pressed(event: KeyboardEvent, on: Controls): void {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = event.target as HTMLElement;
  if (document.querySelector("dialog[open]")) return;
  if (target.matches?.("input:not([type=range]):not([type=checkbox]), select, textarea")) return;
  if (event.key === " " && target.matches?.("button, summary, a, input")) return;
  if (event.key.startsWith("Arrow") && target.matches?.("input[type=range]:not([data-steps])")) return;
  if (KEYS.some((entry) => entry.press(event, on))) event.preventDefault();
}
