/**
 * Admits by minute and outcome. The API counts them by day, so minutes are differences of what is read again and again:
 * they begin when the console first reads.
 */

import { get } from "./api.js";
import { session } from "./session.js";
import { sleep } from "./sse.js";
import { Store } from "./store.js";

const MINUTE = 60_000;
const EVERY_MS = 10_000;
/** A page that nobody sees is still to have its minutes right. */
const HIDDEN_MS = 55_000;
/** Minutes that are kept. */
const KEPT = 60;

/** How an admit can end. */
export const OUTCOMES = ["admitted", "denied", "refused", "failed"];

/** Reads the counts of the session's product until `close`. */
class Admits {
  #abort = new AbortController();
  #before;
  #firstDay = dayOf(Date.now());
  /** `minutes` has, by the time of its beginning, what each minute has added to each outcome. */
  state = new Store({ since: undefined, minutes: new Map(), today: undefined, error: undefined });

  constructor() {
    this.#run();
  }

  close() {
    this.#abort.abort();
  }

  async #run() {
    const { signal } = this.#abort;
    while (!signal.aborted) {
      try {
        // The sum of all days since the first one never falls, also when a day ends.
        this.#take(await get("/usage", { query: { from: this.#firstDay }, signal }));
      } catch (error) {
        if (!signal.aborted) this.state.patch({ error });
      }
      await sleep(document.hidden ? HIDDEN_MS : EVERY_MS, signal);
    }
  }

  #take({ rows, total_admits: sums }) {
    const now = Date.now();
    const today = rows.find(({ day }) => day === dayOf(now))?.admits;
    const { since = now, minutes } = this.state.value;
    if (this.#before !== undefined) addTo(minutes, Math.floor(now / MINUTE) * MINUTE, this.#before, sums);
    this.#before = sums;
    this.state.patch({ since, minutes, today, error: undefined });
  }
}

function addTo(minutes, minute, before, sums) {
  const counts = minutes.get(minute) ?? {};
  for (const outcome of OUTCOMES) {
    counts[outcome] = (counts[outcome] ?? 0) + Math.max(0, sums[outcome] - before[outcome]);
  }
  minutes.set(minute, counts);
  for (const known of minutes.keys()) if (known < minute - KEPT * MINUTE) minutes.delete(known);
}

/** 2026-11-29, in UTC as the service counts. */
export function dayOf(ms) {
  return new Date(ms).toISOString().slice(0, 10);
}

let current;

/** Those of the session. They go on while other views are shown. */
export function admits() {
  current ??= new Admits();
  return current;
}

session.listen(() => {
  current?.close();
  current = undefined;
});
