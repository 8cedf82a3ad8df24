/** Requests to a person in a turn: the caller's function is asked, and its answer is sent. */

import type { Api } from "./api.js";
import {
  ApprovalAnsweredError,
  ApprovalNotFoundError,
  HitlNotPendingError,
  TaskNotFoundError,
} from "./error-codes.js";
import type { ApprovalRequestEvent, HitlRequestEvent, TurnEvent } from "./events.js";
import type { ApprovalRespond, EnginePaths, HitlRespond } from "./types.js";

/**
 * An answer to a request: a text (`yes` or `no` for a permission), a text with more, or a decision about a tool
 * call. Undefined leaves the request open, for somebody else or for later.
 */
export type RequestAnswer =
  string | Omit<HitlRespond, "task_id" | "request_id"> | ApprovalRespond | undefined;

export interface RequestContext {
  /** What a request about a tool call is about, with a preview and the possible decisions. */
  readonly approval?: ApprovalRequestEvent;
  /** Aborted when the request is settled elsewhere, or nobody reads the turn any more. */
  readonly signal: AbortSignal;
}

/** Asks a person. Requests that were answered before the turn is read are not asked. */
export type OnRequest = (
  request: HitlRequestEvent,
  context: RequestContext,
) => RequestAnswer | Promise<RequestAnswer>;

/** Answers the requests of one turn while it is read. */
export class Requests {
  readonly #api: Api<EnginePaths>;
  readonly #onRequest: OnRequest | undefined;
  readonly #onFailure: (error: Error) => void;
  readonly #open = new Map<string, AbortController>();
  readonly #approvals: Map<string, ApprovalRequestEvent>;

  /** `approvals` is kept by the turn, because reading can be interrupted between the two events of a request. */
  constructor(
    api: Api<EnginePaths>,
    approvals: Map<string, ApprovalRequestEvent>,
    onRequest: OnRequest | undefined,
    onFailure: (error: Error) => void,
  ) {
    this.#api = api;
    this.#approvals = approvals;
    this.#onRequest = onRequest;
    this.#onFailure = onFailure;
  }

  /** Takes the next event of the turn. */
  see(event: TurnEvent): void {
    if (event.type === "approval_request") this.#approvals.set(event.request_id, event);
    else if (event.type === "hitl_request") this.ask(event);
    else if (event.type === "hitl_resolved") {
      this.#approvals.delete(event.request_id);
      this.#settle(event.request_id);
    }
  }

  /** Asks the caller's function, unless it is being asked. */
  ask(request: HitlRequestEvent): void {
    if (this.#onRequest === undefined || this.#open.has(request.request_id)) return;
    const abort = new AbortController();
    this.#open.set(request.request_id, abort);
    this.#answer(this.#onRequest, request, abort.signal).catch((error: unknown) => {
      if (!abort.signal.aborted) this.#onFailure(error instanceof Error ? error : new Error(String(error)));
    });
  }

  /** Nobody reads the turn any more. */
  close(): void {
    for (const id of [...this.#open.keys()]) this.#settle(id);
  }

  #settle(requestId: string): void {
    this.#open.get(requestId)?.abort();
    this.#open.delete(requestId);
  }

  async #answer(onRequest: OnRequest, request: HitlRequestEvent, signal: AbortSignal): Promise<void> {
    // A replay shows requests that were answered long ago.
    const { pending } = await this.#api.call("get", "/hitl/pending", {
      query: { task_id: request.task_id },
      signal,
    });
    if (!pending.some((entry) => entry.request_id === request.request_id)) return;
    const approval = this.#approvals.get(request.request_id);
    const answer = await onRequest(request, { signal, ...(approval === undefined ? {} : { approval }) });
    if (answer === undefined || signal.aborted) return;
    try {
      await sendAnswer(this.#api, request, answer);
    } catch (error) {
      if (!isSettled(error)) throw error;
    }
  }
}

/** Answers a request. It is named, so the call can be repeated. */
async function sendAnswer(
  api: Api<EnginePaths>,
  request: HitlRequestEvent,
  answer: Exclude<RequestAnswer, undefined>,
): Promise<void> {
  const { task_id, request_id } = request;
  if (typeof answer === "object" && "decision" in answer) {
    const path = { task_id, request_id };
    await api.callRepeatable("post", "/tasks/{task_id}/approvals/{request_id}", { path, body: answer });
    return;
  }
  const given = typeof answer === "string" ? { answer } : answer;
  await api.callRepeatable("post", "/hitl/respond", { body: { ...given, task_id, request_id } });
}

/** Somebody else was quicker, or the first of two attempts has arrived. The event of the turn will tell. */
function isSettled(error: unknown): boolean {
  return (
    error instanceof HitlNotPendingError ||
    error instanceof ApprovalNotFoundError ||
    error instanceof ApprovalAnsweredError ||
    error instanceof TaskNotFoundError
  );
}
