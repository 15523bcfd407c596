/** Feed: one thing fetched again and again. One request at a time, the latest wish wins, failures are tried again. */

import { untrack } from "svelte";
import { trouble } from "./trouble.svelte";

const RETRY_MS = 2000;
/** The least time from one request to the next: a slider moves faster than anyone can look. */
const PAUSE_MS = 60;

export class Feed<T> {
  /** What came last; it stays while the next is on its way. */
  value = $state.raw<T | null>(null);
  /** The key of what came last. */
  key = $state("");
  /** Whether what is shown is not yet what was asked for. */
  busy = $state(false);

  #wanted: { key: string; get: () => Promise<T> } | null = null;
  #resting = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Ask for what the key stands for, unless it is there already. Wishes made meanwhile replace each other. */
  want(key: string, get: () => Promise<T>): void {
    this.#wanted = { key, get };
    this.busy = key !== untrack(() => this.key);
    if (!this.#resting) void this.#fetch();
  }

  /** Forget all wishes; what is shown stays. */
  stop(): void {
    this.#wanted = null;
    this.busy = false;
  }

  async #fetch(): Promise<void> {
    const wish = this.#wanted;
    if (!wish || wish.key === untrack(() => this.key)) return;
    this.#resting = true;
    const begun = performance.now();
    let pause = PAUSE_MS;
    try {
      const value = await wish.get();
      trouble.over();
      // After stop() nobody waits for it any more.
      if (this.#wanted) {
        this.value = value;
        this.key = wish.key;
        this.busy = this.#wanted.key !== wish.key;
      }
    } catch (error) {
      if (this.#wanted) trouble.report(error);
      pause = RETRY_MS;
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(
      () => {
        this.#resting = false;
        void this.#fetch();
      },
      Math.max(0, begun + pause - performance.now()),
    );
  }
}
