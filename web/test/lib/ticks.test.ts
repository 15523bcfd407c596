import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { OPEN_WITHIN_MS, POLL_MS, listen } from "../../src/lib/ticks";
import { fakeApi, run } from "../fixtures";

class FakeStream {
  static readonly CLOSED = 2;
  static all: FakeStream[] = [];
  readyState = 0;
  closed = false;
  onopen = () => {};
  onerror = () => {};
  onmessage = (_: { data: string }) => {};
  constructor(readonly url: string) {
    FakeStream.all.push(this);
  }
  close() {
    this.closed = true;
  }
}

let hidden = false;
let stop = () => {};
const changed = vi.fn();
const failed = vi.fn();

function begin(stream: string | null = "api/ticks") {
  const sequences = vi.fn(fakeApi([run("a")]).sequences);
  stop = listen({ ...fakeApi([run("a")]), live: true, stream, sequences }, changed, failed);
  return sequences;
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("EventSource", FakeStream);
  vi.spyOn(document, "hidden", "get").mockImplementation(() => hidden);
  hidden = false;
  FakeStream.all = [];
  changed.mockClear();
  failed.mockClear();
});
afterEach(() => {
  stop();
  vi.useRealTimers();
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

describe("hearing of changes", () => {
  it("passes on what the stream says and does not ask", async () => {
    const sequences = begin();
    const [stream] = FakeStream.all;
    stream!.onopen();
    stream!.onmessage({ data: '{"runs": {"a": 7}}' });
    expect(changed).toHaveBeenCalledWith({ a: 7 });
    await vi.advanceTimersByTimeAsync(4 * OPEN_WITHIN_MS);
    expect(sequences).not.toHaveBeenCalled();
  });

  it("asks every two seconds when no stream opens in time", async () => {
    const sequences = begin();
    await vi.advanceTimersByTimeAsync(OPEN_WITHIN_MS + 10);
    expect(FakeStream.all[0]!.closed).toBe(true);
    expect(sequences).toHaveBeenCalledTimes(1);
    await vi.advanceTimersByTimeAsync(3 * POLL_MS);
    expect(sequences).toHaveBeenCalledTimes(4);
    expect(changed).toHaveBeenLastCalledWith({ a: 1 });
  });

  it("asks at once when there is no stream to open, as with a token", async () => {
    const sequences = begin(null);
    await vi.advanceTimersByTimeAsync(1);
    expect(FakeStream.all).toHaveLength(0);
    expect(sequences).toHaveBeenCalledTimes(1);
  });

  it("asks when the stream is refused, and waits for the browser when it was lost", async () => {
    const sequences = begin();
    const [stream] = FakeStream.all;
    stream!.onopen();
    stream!.onerror();
    expect(failed).toHaveBeenCalledTimes(1);
    expect(sequences).not.toHaveBeenCalled();
    stream!.readyState = FakeStream.CLOSED;
    stream!.onerror();
    await vi.advanceTimersByTimeAsync(1);
    expect(sequences).toHaveBeenCalledTimes(1);
  });

  it("goes on asking after a failure", async () => {
    stop = listen(
      { ...fakeApi([]), stream: null, sequences: () => Promise.reject(new Error("down")) },
      changed,
      failed,
    );
    await vi.advanceTimersByTimeAsync(2 * POLL_MS + 10);
    expect(failed).toHaveBeenCalledTimes(3);
  });

  it("closes the stream while the tab is hidden", () => {
    begin();
    hidden = true;
    document.dispatchEvent(new Event("visibilitychange"));
    expect(FakeStream.all[0]!.closed).toBe(true);
    hidden = false;
    document.dispatchEvent(new Event("visibilitychange"));
    expect(FakeStream.all).toHaveLength(2);
  });

  it("asks in one row only, however often the tab comes and goes", async () => {
    const sequences = begin(null);
    for (let times = 0; times < 3; times++) document.dispatchEvent(new Event("visibilitychange"));
    await vi.advanceTimersByTimeAsync(1);
    sequences.mockClear();
    await vi.advanceTimersByTimeAsync(3 * POLL_MS);
    expect(sequences).toHaveBeenCalledTimes(3);
  });

  it("is silent after its end", async () => {
    const sequences = begin(null);
    await vi.advanceTimersByTimeAsync(1);
    stop();
    await vi.advanceTimersByTimeAsync(5 * POLL_MS);
    expect(sequences).toHaveBeenCalledTimes(1);
  });
});
