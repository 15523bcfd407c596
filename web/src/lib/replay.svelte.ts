/** Replay: walk through the recorded steps as a film. */

import type { Cockpit } from "./state.svelte";

export const SPEEDS = [1, 2, 5, 10, 25];

export class Replay {
  playing = $state(false);
  /** Recorded steps per second. */
  speed = $state(5);

  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly cockpit: Cockpit) {}

  toggle(): void {
    if (this.playing) return this.stop();
    this.playing = true;
    if (this.cockpit.place.step === null) this.cockpit.goTo(0);
    this.#wait();
  }

  stop(): void {
    this.playing = false;
    clearTimeout(this.#timer);
  }

  #wait(): void {
    this.#timer = setTimeout(() => {
      this.cockpit.moveBy(1);
      // The page follows the run again: the film is over.
      if (this.cockpit.place.step === null) this.stop();
      else this.#wait();
    }, 1000 / this.speed);
  }
}
