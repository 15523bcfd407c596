/** What jsdom lacks for drawing: a canvas context that counts its calls, paths, and elements with a width. */

import { vi } from "vitest";

/** How often each method of the context was called since `stubCanvas`. */
export let calls: Record<string, number> = {};

export function stubCanvas(): void {
  calls = {};
  const gradient = { addColorStop() {} };
  const own: Record<string, unknown> = {
    measureText: (text: string) => ({ width: 6 * text.length }),
    createImageData: (width: number, height: number) => ({
      width,
      height,
      data: new Uint8ClampedArray(4 * width * height),
    }),
    createLinearGradient: () => gradient,
  };
  const context = new Proxy(own, {
    get(target, name: string) {
      if (name in target && typeof target[name] !== "function") return target[name];
      return (...given: unknown[]) => {
        calls[name] = (calls[name] ?? 0) + 1;
        // A number that is not one would be drawn nowhere, without a word.
        if (given.some(Number.isNaN)) throw new Error(`${name}(${given.join(", ")})`);
        return (target[name] as ((...all: unknown[]) => unknown) | undefined)?.(...given);
      };
    },
    set(target, name: string, value) {
      target[name] = value;
      return true;
    },
  });
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(context as never);
  vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(400);
  vi.stubGlobal(
    "Path2D",
    class {
      rect() {}
      moveTo() {}
      lineTo() {}
      arc() {}
      closePath() {}
      addPath() {}
    },
  );
}
