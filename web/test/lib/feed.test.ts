import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Feed } from "../../src/lib/feed.svelte";
import { trouble } from "../../src/lib/trouble.svelte";

/** An answer that waits until it is let go. */
function held<T>(value: T) {
  let go!: () => void;
  const answer = new Promise<T>((resolve) => (go = () => resolve(value)));
  return { get: vi.fn(() => answer), go };
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  trouble.over();
});
const settled = () => vi.advanceTimersByTimeAsync(0);

describe("a feed", () => {
  it("has one request in flight, and of the wishes made meanwhile only the latest is fetched", async () => {
    const feed = new Feed<string>();
    const [one, two, three] = [held("one"), held("two"), held("three")];
    feed.want("1", one.get);
    feed.want("2", two.get);
    feed.want("3", three.get);
    expect(two.get).not.toHaveBeenCalled();
    expect(three.get).not.toHaveBeenCalled();
    one.go();
    await settled();
    expect(feed.value).toBe("one");
    expect(feed.busy).toBe(true);
    await vi.advanceTimersByTimeAsync(100);
    expect(three.get).toHaveBeenCalledTimes(1);
    three.go();
    await settled();
    expect(two.get).not.toHaveBeenCalled();
    expect(feed.value).toBe("three");
    expect(feed.busy).toBe(false);
  });

  it("does not fetch what it shows already", async () => {
    const feed = new Feed<string>();
    const get = vi.fn(async () => "here");
    feed.want("1", get);
    await settled();
    feed.want("1", get);
    await settled();
    expect(get).toHaveBeenCalledTimes(1);
  });

  it("tells of a failure, keeps what it has and tries again until it succeeds", async () => {
    const feed = new Feed<string>();
    feed.want("1", async () => "old");
    await vi.advanceTimersByTimeAsync(100);
    let broken = true;
    feed.want("2", async () => {
      if (broken) throw new Error("gone");
      return "new";
    });
    await settled();
    expect(trouble.text).toBe("gone");
    expect(feed.value).toBe("old");
    broken = false;
    await vi.advanceTimersByTimeAsync(2100);
    expect(feed.value).toBe("new");
    expect(trouble.text).toBe("");
  });

  it("takes no answer after stop", async () => {
    const feed = new Feed<string>();
    const late = held("late");
    feed.want("1", late.get);
    feed.stop();
    late.go();
    await settled();
    expect(feed.value).toBeNull();
  });
});
