/**
 * The product's engines, and what happens to them: read once by pages, then kept up to date by the audit log's stream.
 */

import { get, path, request } from "./api.js";
import { seen, whileSeen } from "./attention.js";
import { ApiError } from "./errors.js";
import { backoff, readSse, sleep } from "./sse.js";
import { STATES } from "./states.js";
import { Store } from "./store.js";

const PAGE = 1_000;
/** The service sends a comment after 15 quiet seconds. */
const IDLE_MS = 45_000;
/** The newest rows of the audit log that are kept here. */
const KEPT_ROWS = 2_000;

/**
 * @typedef {{user_id: string, engine_id: string, status: string, engine_version: string | null,
 *   created_at: string, last_health_at?: string | null, changed_at?: string}} Engine
 */

/** Reads and follows the engines of the product of the session until `close`. */
export class Fleet {
  /** @type {Map<string, Engine>} */
  #engines = new Map();
  #abort = new AbortController();
  #position = 0;
  #drawing = false;
  /** `loading`, `live`, `reconnecting` or `failed`, and the engines in the order in which they were provisioned. */
  state = new Store({ phase: "loading", engines: [], loaded: 0, total: undefined, error: undefined });
  /** The newest rows of the audit log since the page was opened, oldest first. */
  rows = new Store([]);

  constructor() {
    this.#run();
  }

  close() {
    this.#abort.abort();
  }

  async #run() {
    const { signal } = this.#abort;
    for (let attempt = 0; !signal.aborted; attempt += 1) {
      try {
        if (this.state.value.phase === "loading") await this.#load();
        await this.#follow(() => {
          attempt = 0;
        });
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status === 400) {
          // The position is of another audit log: the registry was restored.
          this.state.patch({ phase: "loading" });
        } else if (error instanceof ApiError && error.status < 500 && error.status !== 429) {
          this.state.patch({ phase: "failed", error });
          return;
        } else {
          this.state.patch({ phase: this.#engines.size > 0 ? "reconnecting" : "loading", error });
        }
      }
      await sleep(backoff(attempt), signal);
    }
  }

  async #load() {
    const { signal } = this.#abort;
    // First the position, then the engines: what happens in between is in the stream, and applied again.
    const newest = await get("/audit", { query: { limit: 1 }, signal });
    this.#position = newest.rows[0]?.id ?? 0;
    const engines = new Map();
    for (let offset = 0, total = 1; offset < total; offset += PAGE) {
      const page = await get("/engines", { query: { limit: PAGE, offset }, signal });
      total = page.total;
      for (const engine of page.engines) engines.set(engine.user_id, engine);
      this.state.patch({ loaded: engines.size, total });
    }
    this.#engines = engines;
    this.#draw("live");
  }

  /** Reads the stream until it ends. It is not open while nobody looks, and continues where it was left. */
  async #follow(begun) {
    const { signal, left, release } = whileSeen(this.#abort.signal);
    try {
      await this.#read(signal, begun);
    } catch (error) {
      if (!left.aborted) throw error;
    } finally {
      release();
    }
    if (left.aborted) await seen(this.#abort.signal);
  }

  async #read(signal, begun) {
    const response = await request("GET", "/events", { query: { after: this.#position }, signal });
    begun();
    this.#draw("live");
    for await (const messages of readSse(response, IDLE_MS, signal)) {
      const rows = messages.map((message) => JSON.parse(message.data));
      for (const row of rows) this.#apply(row);
      this.rows.set([...this.rows.value, ...rows].slice(-KEPT_ROWS));
      this.#drawSoon();
    }
  }

  #apply(row) {
    this.#position = row.id;
    const to = row.detail?.to;
    if (row.user_id === null) return;
    if (row.event === "destroy") {
      this.#engines.delete(row.user_id);
    } else if (STATES.includes(to)) {
      const known = this.#engines.get(row.user_id);
      const version = row.detail.version?.to ?? known?.engine_version ?? null;
      const fields = { engine_id: row.engine_id, status: to, engine_version: version, changed_at: row.at };
      this.#engines.set(row.user_id, { user_id: row.user_id, created_at: row.at, ...known, ...fields });
    }
  }

  /** Draws once per frame, however many changes there are. A hidden page has no frames. */
  #drawSoon() {
    if (this.#drawing) return;
    this.#drawing = true;
    const draw = () => {
      this.#drawing = false;
      this.#draw(this.state.value.phase);
    };
    if (document.hidden) setTimeout(draw, 250);
    else requestAnimationFrame(draw);
  }

  #draw(phase) {
    this.state.patch({ phase, engines: [...this.#engines.values()], total: this.#engines.size, error: undefined });
  }
}

/** The fleet of the session, while somebody is signed in. */
let current;

/** The fleet; one is opened if there is none. */
export function fleet() {
  current ??= new Fleet();
  return current;
}

/** Ends it: nobody is signed in any more, or another product was chosen. */
export function closeFleet() {
  current?.close();
  current = undefined;
}

/** The calls that change an engine. */
export const ACTIONS = {
  start: (user) => ["POST", path`/engines/${user}/start`],
  stop: (user) => ["POST", path`/engines/${user}/stop`],
  rotate: (user) => ["POST", path`/engines/${user}/rotate-key`],
  destroy: (user) => ["DELETE", path`/engines/${user}`],
};
