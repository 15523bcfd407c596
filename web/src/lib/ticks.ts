/** Hear of changes: a stream of server-sent events, or asking every two seconds where no stream comes through. */

import type { Api, Sequences } from "./api";

export const OPEN_WITHIN_MS = 3000;
export const POLL_MS = 2000;

/**
 * Call `changed` with the runs' sequence numbers, now and after every change, until the returned function is called.
 * A hidden tab neither listens nor asks: browsers lend one origin six connections, and a stream occupies one.
 */
export function listen(
  api: Api,
  changed: (sequences: Sequences) => void,
  failed: (error: unknown) => void,
): () => void {
  let stream: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  /** Answers to questions of an earlier round come too late: the tab was hidden or the page is gone. */
  let round = 0;
  let polling = api.stream === null || typeof EventSource === "undefined";

  const close = () => {
    round++;
    clearTimeout(timer);
    stream?.close();
    stream = null;
  };
  const poll = async () => {
    const mine = round;
    try {
      const sequences = await api.sequences();
      if (mine === round) changed(sequences);
    } catch (error) {
      if (mine === round) failed(error);
    }
    if (mine === round) timer = setTimeout(poll, POLL_MS);
  };
  const fallBack = () => {
    close();
    polling = true;
    void poll();
  };
  const open = () => {
    close();
    if (document.hidden) return;
    if (polling) return void poll();
    const source = new EventSource(api.stream!);
    stream = source;
    timer = setTimeout(fallBack, OPEN_WITHIN_MS);
    source.onopen = () => clearTimeout(timer);
    source.onmessage = (event) => changed((JSON.parse(event.data) as { runs: Sequences }).runs);
    source.onerror = () => {
      // The browser reconnects by itself after a lost connection, but not after a refusal.
      if (source.readyState === EventSource.CLOSED) fallBack();
      else failed(new Error("The server does not answer. Trying again by itself."));
    };
  };
  document.addEventListener("visibilitychange", open);
  open();
  return () => {
    document.removeEventListener("visibilitychange", open);
    close();
  };
}
