/**
 * One conversation with an engine: its messages, its turns as they happen, and what can be sent.
 *
 * Messages are sent in the background, and all turns are read from the task's log from the last position on. So a turn
 * that this page has begun, one that it finds, and one whose connection broke are read by the same code, and each event
 * is applied exactly once.
 */

import { change, engine, path, randomId } from "../lib/api.js";
import { ApiError, NetworkError } from "../lib/errors.js";
import { backoff, readSse, sleep } from "../lib/sse.js";
import { Store } from "../lib/store.js";
import { applyEvent, newTurn } from "./turn.js";

const MESSAGES = 60;
/** Turns whose events are read again when the page is opened, for their thinking and their times. */
const RECENT_TURNS = 6;
/** A turn begins with its plan, which is made before what is noted as its start. */
const BEFORE_START_MS = 300_000;
/** The engine sends a heartbeat every 15 seconds. */
const IDLE_MS = 45_000;
const ACTIVE = new Set(["queued", "running", "waiting_for_person"]);
/** Codes that say that the engine is not there at the moment. */
const AWAY = new Set(["ENGINE_NOT_RUNNING", "BACKEND_ERROR", "STARTING_UP", "CAPACITY_EXHAUSTED", "MAINTENANCE"]);

export class Conversation {
  #engine;
  #abort = new AbortController();
  /** The `ts` of the last event that was applied. */
  #position = 0;
  #following = false;
  /** Whether something was sent since the reader last looked for turns. */
  #wanted = false;
  #drawing = false;
  #turns = new Map();
  /** The first turn whose events are read. */
  #first;
  state = new Store({ phase: "loading", messages: [], hasOlder: false, turns: new Map(), queue: [], sending: undefined, error: undefined });

  constructor(user, task) {
    this.user = user;
    this.task = task;
    this.#engine = engine(user);
    this.#open();
  }

  close() {
    this.#abort.abort();
  }

  /** The turn that runs or waits for a person. */
  get running() {
    return [...this.state.value.turns.values()].findLast((turn) => turn.state === "running");
  }

  async #open() {
    const { signal } = this.#abort;
    for (let attempt = 0; !signal.aborted; attempt += 1) {
      try {
        const turns = await this.#recentTurns();
        this.#first = turns.filter((turn) => turn.started_at !== undefined).at(-1);
        this.#position = this.#first === undefined ? 0 : Date.parse(this.#first.started_at) - BEFORE_START_MS;
        await this.#readMessages();
        this.state.patch({ phase: "idle", error: undefined });
        if (turns.length > 0) this.#follow();
        return;
      } catch (error) {
        if (signal.aborted) return;
        this.state.patch({ error, phase: "loading" });
        if (!(await this.#comesBack(error))) return;
        await sleep(backoff(attempt), signal);
      }
    }
  }

  async #recentTurns(limit = RECENT_TURNS) {
    try {
      return (await this.#call("GET", path`/tasks/${this.task}/turns`, { query: { limit } })).turns;
    } catch (error) {
      // The conversation begins with its first message.
      if (error.code === "TASK_NOT_FOUND") return [];
      throw error;
    }
  }

  async #readMessages(before) {
    try {
      const at = path`/tasks/${this.task}/messages`;
      const page = await this.#call("GET", at, { query: { limit: MESSAGES, before } });
      const { messages, hasOlder } = this.state.value;
      if (before !== undefined) {
        this.state.patch({ messages: [...page.messages, ...messages], hasOlder: page.has_older });
        return;
      }
      // The newest page again: what was shown of older ones stays.
      const overlap = messages.findIndex(({ message_id: id }) => id === page.messages[0]?.message_id);
      const older = messages.slice(0, Math.max(0, overlap));
      this.state.patch({
        messages: [...older, ...page.messages],
        hasOlder: older.length > 0 ? hasOlder : page.has_older,
      });
    } catch (error) {
      if (error.code !== "TASK_NOT_FOUND") throw error;
    }
  }

  /** Shows messages that are older than those shown. */
  async readOlder() {
    await this.#readMessages(this.state.value.messages[0]?.message_id);
  }

  /** Sends a message, an edit (`edit_message_id`) or a retry (`retry_message_id`). */
  async send(fields) {
    const steers = fields.on_busy === "steer";
    const key = steers ? {} : { client_request_id: randomId() };
    const json = { task_id: this.task, background: true, ...key, ...fields };
    this.state.patch({ sending: fields, phase: "following", error: undefined });
    try {
      await this.#sendUntilAnswered(json, steers);
      if (fields.on_busy !== undefined) await this.#readQueue();
      if (steers) await this.#readMessages();
      this.#follow();
    } finally {
      this.state.patch({ sending: undefined, phase: this.#following ? this.state.value.phase : "idle" });
    }
  }

  /** A message with an id is sent again when its answer is lost: it begins one turn only. */
  async #sendUntilAnswered(json, once) {
    const { signal } = this.#abort;
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await this.#call("POST", "/execute", { json });
      } catch (error) {
        if (once || attempt > 8 || !(await this.#comesBack(error))) throw error;
        await sleep(backoff(attempt, 4_000), signal);
      }
    }
  }

  async cancel() {
    const turn = this.running;
    if (turn === undefined) return;
    const json = { task_id: this.task, turn_id: turn.id };
    await this.#call("POST", "/execute/cancel", { json }).catch((error) => {
      if (error.code !== "TASK_NOT_RUNNING") throw error;
    });
  }

  async unqueue(turnId) {
    await this.#call("DELETE", path`/tasks/${this.task}/queue/${turnId}`);
    await this.#readQueue();
  }

  /** Decides about a tool call. */
  decide(requestId, decision) {
    return this.#call("POST", path`/tasks/${this.task}/approvals/${requestId}`, { json: decision });
  }

  /** Answers a question. */
  answer(requestId, answer) {
    return this.#call("POST", "/hitl/respond", { json: { task_id: this.task, request_id: requestId, answer } });
  }

  rate(rating) {
    return this.#call("POST", "/feedback", { json: { task_id: this.task, feedback_type: "rating", rating } });
  }

  /** Says what the last answer should have been. */
  correct(text) {
    const json = { task_id: this.task, feedback_type: "correction", correction_text: text };
    return this.#call("POST", "/feedback", { json });
  }

  #call(method, rest, options) {
    const { signal } = this.#abort;
    return method === "GET" ? this.#engine.get(rest, { ...options, signal }) : this.#engine.send(method, rest, { ...options, signal });
  }

  /** Whether what failed may succeed soon: a connection broke, or the engine is away and could be woken. */
  async #comesBack(error) {
    if (error instanceof NetworkError) return true;
    if (!(error instanceof ApiError) || !AWAY.has(error.code)) return false;
    try {
      const json = { auto_wake: true };
      const { admitted, reason } = await change("POST", path`/engines/${this.user}/admit`, { json });
      if (!admitted) {
        this.state.patch({ error: new ApiError({ status: 409, code: "NOT_ADMITTED", message: DENIED[reason] ?? reason }) });
      }
      return admitted;
    } catch (failed) {
      return failed instanceof NetworkError || failed.status === 503;
    }
  }

  /** Reads events until no turn is left. There is one reader; it goes on if more was sent meanwhile. */
  async #follow() {
    this.#wanted = true;
    if (this.#following) return;
    this.#following = true;
    try {
      while (this.#wanted && !this.#abort.signal.aborted) {
        this.#wanted = false;
        await this.#followUntilIdle();
        await this.#readMessages();
      }
      this.state.patch({ phase: "idle", error: undefined });
    } catch (error) {
      if (!this.#abort.signal.aborted) this.state.patch({ phase: "idle", error });
    } finally {
      this.#following = false;
    }
  }

  async #followUntilIdle() {
    const { signal } = this.#abort;
    for (let attempt = 0; !signal.aborted; attempt += 1) {
      try {
        await this.#replay(() => {
          attempt = 0;
        });
        const turns = await this.#recentTurns(20);
        await this.#readQueue();
        if (!turns.some((turn) => ACTIVE.has(turn.state))) return;
      } catch (error) {
        if (signal.aborted) return;
        this.state.patch({ phase: "reconnecting", error });
        if (!(await this.#comesBack(error))) throw error;
      }
      await sleep(backoff(attempt, 3_000), signal);
    }
  }

  async #replay(begun) {
    const { signal } = this.#abort;
    const query = { task_id: this.task, after: this.#position };
    const response = await this.#engine.request("GET", "/execute/replay", { query, signal });
    this.state.patch({ phase: "following", error: undefined });
    for await (const messages of readSse(response, IDLE_MS, signal)) {
      begun();
      for (const message of messages) this.#take(message);
      this.#drawSoon();
    }
  }

  #take({ event, data: text, id }) {
    if (event === "heartbeat") return;
    const data = JSON.parse(text);
    if (event === "busy_update") {
      this.#readQueue().catch(() => undefined);
      return;
    }
    // Events without an id have no place in the log, and one that was read already is not read again.
    if (id === undefined || data.ts <= this.#position) return;
    this.#position = data.ts;
    if (this.#isEarlier(data)) return;
    const turn = this.#turns.get(data.turn_id) ?? newTurn(data.turn_id);
    this.#turns.set(data.turn_id, applyEvent(turn, event, data));
    if (event === "thread_lifecycle" && ["started", "completed", "cancelled"].includes(data.phase)) {
      this.#readMessages().catch(() => undefined);
    }
  }

  /** Whether an event is of a turn before the first one whose events are read. */
  #isEarlier({ ts, turn_id: id }) {
    return this.#first !== undefined && id !== this.#first.turn_id && ts < Date.parse(this.#first.started_at);
  }

  async #readQueue() {
    const { entries } = await this.#call("GET", path`/tasks/${this.task}/queue`);
    this.state.patch({ queue: entries });
  }

  /** Draws once per frame, however many events there are. */
  #drawSoon() {
    if (this.#drawing) return;
    this.#drawing = true;
    const draw = () => {
      this.#drawing = false;
      this.state.patch({ turns: new Map(this.#turns) });
    };
    if (document.hidden) setTimeout(draw, 250);
    else requestAnimationFrame(draw);
  }
}

const DENIED = {
  engine_not_found: "This user has no engine. Provision one first.",
  engine_sleeping: "The engine sleeps and could not be woken.",
  engine_unhealthy: "The engine has failed and is not restarted soon. Look at its log, then start it.",
  engine_stopped: "The engine was stopped. Start it to go on.",
};
