/** A turn: its events, read over as many connections as it takes, and its result. */

import type { Api } from "./api.js";
import { cancelTurn, isGone } from "./cancel.js";
import { BackendError, TaskBusyError } from "./error-codes.js";
import {
  ApiError,
  NetworkError,
  type RoundhouseError,
  TurnCancelledError,
  TurnFailedError,
  TurnLostError,
} from "./errors.js";
import { type ApprovalRequestEvent, type HitlRequestEvent, parseEvent, type TurnEvent } from "./events.js";
import { beginInBackground, isIdempotent } from "./execute.js";
import { type OnRequest, Requests } from "./requests.js";
import { Attempts, isPassing } from "./retry.js";
import { readSse, type SseMessage } from "./sse.js";
import { LinkedAbort, sleep, throwIfAborted } from "./time.js";
import { Transcript } from "./transcript.js";
import type { Citation, EnginePaths, Execute, StopReason, TurnRecord, Usage } from "./types.js";

/** The options of a turn's reader. */
export interface TurnOptions {
  /** Answers what the agent asks a person. */
  readonly onRequest?: OnRequest | undefined;
  /** Ends reading; the turn goes on. */
  readonly signal?: AbortSignal | undefined;
  /** For how long a lost connection is tried again; 2 minutes by default. */
  readonly reconnectMs?: number | undefined;
  /** After how long without any sign of life a connection counts as lost; 45 seconds by default. */
  readonly idleMs?: number | undefined;
}

/** How a turn begins: with a message, or where somebody else has begun it. */
export type TurnStart =
  | { readonly kind: "message"; readonly body: Execute }
  | { readonly kind: "followed"; readonly taskId: string; readonly turnId: string; readonly after: number };

/** What became of a completed turn. */
export interface TurnResult {
  readonly taskId: string;
  readonly turnId: string;
  /** The text of the model's last answer. */
  readonly text: string;
  readonly stopReason: StopReason;
  /** The message that the turn answers, and the one with its last answer. */
  readonly messageId: string;
  readonly answerMessageId: string;
  /** What the turn used, if the events that say so were read. */
  readonly usage?: Usage;
  /** The pages that the answer names. */
  readonly citations: readonly Citation[];
}

type End =
  | { readonly kind: "completed"; readonly result: TurnResult }
  | { readonly kind: "failed"; readonly error: RoundhouseError };

/** The engine sends a heartbeat every 15 seconds. */
const DEFAULT_IDLE_MS = 45_000;
const DEFAULT_RECONNECT_MS = 120_000;

/**
 * A turn. Iterate over it for its events, or await `result()` or `text()`; nothing is sent before.
 *
 * A connection that breaks is opened again, and the events continue exactly where they had stopped. Leaving a
 * `for await` loop closes the connection and not the turn: another loop, or `result()`, goes on from there.
 */
export class Turn implements AsyncIterable<TurnEvent> {
  readonly taskId: string;
  /** What the turn has said so far. */
  readonly transcript = new Transcript();
  readonly #api: Api<EnginePaths>;
  readonly #start: TurnStart;
  readonly #options: TurnOptions;
  readonly #approvals = new Map<string, ApprovalRequestEvent>();
  #turnId: string | undefined;
  /** The `ts` of the last event; undefined until the turn's own events have begun. */
  #position: number | undefined;
  #lastBusyUpdate = "";
  /** The request that was not resolved when reading stopped. */
  #pending: HitlRequestEvent | undefined;
  #usage: Usage | undefined;
  #citations: readonly Citation[] = [];
  #end: End | undefined;
  #isRead = false;
  /** Whether the message may have arrived. */
  #isSent = false;
  #identified = deferred();

  constructor(api: Api<EnginePaths>, start: TurnStart, options: TurnOptions) {
    this.#api = api;
    this.#start = start;
    this.#options = options;
    if (start.kind === "followed") {
      this.taskId = start.taskId;
      this.#turnId = start.turnId;
      this.#position = start.after;
    } else {
      this.taskId = start.body.task_id;
    }
  }

  /** Its id, once an event was read. */
  get turnId(): string | undefined {
    return this.#turnId;
  }

  /** The `ts` of the last event that was read, for `engine.follow` in another process. */
  get position(): number | undefined {
    return this.#position;
  }

  /** Whether its last event was read. */
  get ended(): boolean {
    return this.#end !== undefined;
  }

  /** The events from the last one that was read. */
  [Symbol.asyncIterator](): AsyncGenerator<TurnEvent, void, undefined> {
    return this.#read();
  }

  /** Reads the rest of the turn. Throws a `TurnFailedError` or `TurnCancelledError` if it did not complete. */
  async result(): Promise<TurnResult> {
    try {
      if (this.#end === undefined) {
        for await (const _ of this.#read());
      }
    } catch (error) {
      if (!(error instanceof TurnLostError)) throw error;
      await this.#endFromRecord(error);
    }
    const end = this.#end;
    if (end?.kind === "completed") return end.result;
    throw end?.error ?? new TurnLostError("the turn has no end", { turnId: this.#turnId });
  }

  /** The text of the answer. Throws as `result` does. */
  async text(): Promise<string> {
    return (await this.result()).text;
  }

  /**
   * Cancels the turn, or takes its message out of the queue; another turn of the task is not touched.
   * False: it had ended otherwise, or was never sent.
   */
  async cancel(): Promise<boolean> {
    if (this.#turnId === undefined && this.#isRead) await this.#identified.promise;
    const turnId = this.#turnId ?? (await this.#find());
    if (turnId === undefined || this.#end !== undefined) return false;
    return cancelTurn(this.#api, { task_id: this.taskId, turn_id: turnId });
  }

  /** The id of a turn of which no event was read, by the idempotency key of its message, if that was sent. */
  async #find(): Promise<string | undefined> {
    if (!this.#isSent || this.#start.kind !== "message" || !isIdempotent(this.#start.body)) return undefined;
    try {
      const { turn_id } = await beginInBackground(this.#api, this.#start.body);
      this.#identify(turn_id);
      return turn_id;
    } catch (error) {
      // It never arrived.
      if (error instanceof TaskBusyError) return undefined;
      throw error;
    }
  }

  async *#read(): AsyncGenerator<TurnEvent, void, undefined> {
    if (this.#isRead) throw new TypeError("this turn is being read already");
    if (this.#end !== undefined) return;
    this.#isRead = true;
    const abort = new LinkedAbort(this.#options.signal);
    const requests = new Requests(this.#api, this.#approvals, this.#options.onRequest, (error) => {
      abort.abort(error);
    });
    try {
      if (this.#pending !== undefined) requests.ask(this.#pending);
      for await (const event of this.#reconnecting(abort.signal)) {
        requests.see(event);
        yield event;
      }
    } finally {
      requests.close();
      abort.abort(new DOMException("the turn is not read any more", "AbortError"));
      abort.release();
      this.#isRead = false;
      this.#identified.resolve();
      this.#identified = deferred();
    }
  }

  /** The events of as many connections as it takes. */
  async *#reconnecting(signal: AbortSignal): AsyncGenerator<TurnEvent, void, undefined> {
    const attempts = new Attempts(this.#options.reconnectMs ?? DEFAULT_RECONNECT_MS);
    for (;;) {
      let failure: unknown;
      try {
        for await (const messages of this.#connect(signal)) {
          attempts.reset();
          for (const message of messages) {
            const event = this.#accept(message);
            if (event !== undefined) yield event;
            if (this.#end !== undefined) return;
            throwIfAborted(signal);
          }
        }
        failure = new NetworkError("the stream ended before the turn", { sent: true });
      } catch (error) {
        throwIfAborted(signal);
        failure = this.#position === undefined ? error : withoutEngine(error);
      }
      if (!this.#mayReconnect(failure)) throw failure;
      const pause = attempts.pauseAfter(failure);
      if (pause === undefined) throw failure;
      await sleep(pause, signal);
    }
  }

  /** A message without an idempotency key is sent once, unless it certainly has not arrived. */
  #mayReconnect(failure: unknown): boolean {
    if (!isPassing(failure, 1)) return false;
    if (this.#position !== undefined || !(failure instanceof NetworkError)) return true;
    return !failure.sent || (this.#start.kind === "message" && isIdempotent(this.#start.body));
  }

  /** The messages of one connection: of the message until the turn has begun, of a replay from then on. */
  async *#connect(signal: AbortSignal): AsyncGenerator<SseMessage[], void> {
    const idleMs = this.#options.idleMs ?? DEFAULT_IDLE_MS;
    if (this.#start.kind === "message" && this.#position === undefined) {
      yield* readSse(await this.#send(this.#start.body, signal), idleMs, signal);
      return;
    }
    const after = this.#position ?? 0;
    yield* this.#replay(after, idleMs, signal);
    // A replay ends with the last turn of the task. If nothing of this turn came, there is nothing more.
    if (this.#end === undefined && this.#position === after) await this.#throwIfOver();
  }

  async #send(body: Execute, signal: AbortSignal): Promise<Response> {
    throwIfAborted(signal);
    const wasSent = this.#isSent;
    this.#isSent = true;
    try {
      return await this.#api.http.stream({
        method: "POST",
        path: "/execute",
        json: body,
        signal,
        retryMs: 0,
      });
    } catch (error) {
      this.#isSent = wasSent || !isRefused(error);
      throw error;
    }
  }

  async *#replay(after: number, idleMs: number, signal: AbortSignal): AsyncGenerator<SseMessage[], void> {
    const query = { task_id: this.taskId, after };
    const call = { method: "GET", path: "/execute/replay", query, signal, retryMs: 0 };
    let response: Response;
    try {
      response = await this.#api.http.stream(call);
    } catch (error) {
      if (isGone(error)) throw this.#lost(error);
      throw error;
    }
    yield* readSse(response, idleMs, signal);
  }

  async #throwIfOver(): Promise<void> {
    const record = await this.#record();
    const { state } = record;
    if (state === "completed" || state === "failed" || state === "cancelled") throw this.#lost(undefined);
  }

  async #record(): Promise<TurnRecord> {
    const path = { task_id: this.taskId, turn_id: this.#turnId ?? "" };
    try {
      return await this.#api.call("get", "/tasks/{task_id}/turns/{turn_id}", { path });
    } catch (error) {
      throw isGone(error) ? this.#lost(error) : error;
    }
  }

  #lost(cause: unknown): TurnLostError {
    const message = "the rest of the turn's events is not there any more";
    return new TurnLostError(message, { turnId: this.#turnId, cause });
  }

  /** How the turn ended, where its events do not tell any more. */
  async #endFromRecord(lost: TurnLostError): Promise<void> {
    if (this.#turnId === undefined || isGone(lost.cause)) throw lost;
    const record = await this.#record();
    if (record.state === "cancelled") this.#fail(new TurnCancelledError(record.turn_id));
    else if (record.state === "failed") this.#fail(failure(record.turn_id, record.error ?? undefined));
    else if (record.state === "completed" && record.stop_reason != null) {
      this.#complete({
        text: record.text ?? "",
        stopReason: record.stop_reason,
        messageId: record.message_id ?? "",
        answerMessageId: record.answer_message_id ?? "",
      });
    } else throw lost;
  }

  /** The event of a message, if it is the turn's next one. */
  #accept(message: SseMessage): TurnEvent | undefined {
    const event = parseEvent(message);
    if (event === undefined || !this.#isNext(event, message)) return undefined;
    this.transcript.add(event);
    this.#notice(event);
    return event;
  }

  /** Whether it belongs to this turn and was not read before; moves the position if it does. */
  #isNext(event: TurnEvent, message: SseMessage): boolean {
    const isOwn = this.#turnId === undefined || event.turn_id === this.#turnId;
    if (event.type === "busy_update") {
      // It has no place in the task's stream, and is repeated by a second connection.
      if (!isOwn || message.data === this.#lastBusyUpdate) return false;
      this.#lastBusyUpdate = message.data;
      this.#identify(event.turn_id);
      if (event.status === "steered") this.#position = event.ts;
      return true;
    }
    if (!isOwn) return false;
    // A later version may send others that have no place in the stream.
    if (message.id === undefined) return true;
    if (this.#position !== undefined && event.ts <= this.#position) return false;
    this.#identify(event.turn_id);
    this.#position = event.ts;
    return true;
  }

  #identify(turnId: string): void {
    this.#turnId = turnId;
    this.#identified.resolve();
  }

  /** Remembers what the result and a later reader need. */
  #notice(event: TurnEvent): void {
    switch (event.type) {
      case "hitl_request":
        this.#pending = event;
        break;
      case "hitl_resolved":
        if (this.#pending?.request_id === event.request_id) this.#pending = undefined;
        break;
      case "usage":
        this.#usage = withoutStamp(event);
        break;
      case "citations":
        this.#citations = event.citations;
        break;
      case "error":
        this.#fail(failure(event.turn_id, event));
        break;
      case "busy_update":
        if (event.status === "cancelled") this.#fail(new TurnCancelledError(event.turn_id));
        if (event.status === "failed") this.#fail(failure(event.turn_id, { message: event.message }));
        break;
      case "thread_lifecycle":
        if (event.phase === "cancelled") this.#fail(new TurnCancelledError(event.turn_id));
        if (event.phase === "completed") {
          this.#complete({
            text: event.text,
            stopReason: event.stop_reason,
            messageId: event.message_id,
            answerMessageId: event.answer_message_id,
          });
        }
        break;
      default:
    }
  }

  #fail(error: RoundhouseError): void {
    this.#end = { kind: "failed", error };
  }

  #complete(answer: Pick<TurnResult, "text" | "stopReason" | "messageId" | "answerMessageId">): void {
    const ids = { taskId: this.taskId, turnId: this.#turnId ?? "" };
    const usage = this.#usage === undefined ? {} : { usage: this.#usage };
    this.#end = { kind: "completed", result: { ...ids, ...answer, ...usage, citations: this.#citations } };
  }
}

/** The orchestrator's proxy may not have noticed yet that the engine is gone: the connection to it is lost. */
function withoutEngine(error: unknown): unknown {
  if (!(error instanceof BackendError)) return error;
  return new NetworkError("the proxy has no answer of the engine", { sent: true, cause: error });
}

/** Whether a message has certainly not arrived, or was turned away. */
function isRefused(error: unknown): boolean {
  if (error instanceof NetworkError) return !error.sent;
  return error instanceof ApiError && !(error instanceof BackendError);
}

function failure(
  turnId: string,
  reason: { message: string; code?: string; retryable?: boolean } | undefined,
): TurnFailedError {
  return new TurnFailedError(reason?.message ?? "the turn failed", {
    turnId,
    retryable: reason?.retryable ?? false,
    ...(reason?.code === undefined ? {} : { code: reason.code }),
  });
}

function withoutStamp<T extends { type: string; task_id: string; turn_id: string; ts: number }>(
  event: T,
): Omit<T, "type" | "task_id" | "turn_id" | "ts"> {
  const { type: _type, task_id: _task, turn_id: _turn, ts: _ts, ...data } = event;
  return data;
}

function deferred(): { promise: Promise<void>; resolve: () => void } {
  let resolve = (): void => undefined;
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}
