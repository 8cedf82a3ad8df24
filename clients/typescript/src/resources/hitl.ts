/** Requests to a person outside of a turn's reader: what waits, answers, and lasting approvals. */

import type { Api, CallOptions } from "../api.js";
import type {
  ApprovalGrant,
  ApprovalRequest,
  ApprovalRespond,
  EnginePaths,
  EngineSchemas,
  HitlRespond,
  PendingRequest,
} from "../types.js";

/** What the agent asks a person. */
export class Hitl {
  readonly #api: Api<EnginePaths>;

  constructor(api: Api<EnginePaths>) {
    this.#api = api;
  }

  /** The requests that wait, of all tasks. */
  async pending(options: { readonly taskId?: string } & CallOptions = {}): Promise<PendingRequest[]> {
    const { taskId, ...rest } = options;
    const query = taskId === undefined ? {} : { task_id: taskId };
    return (await this.#api.call("get", "/hitl/pending", { query, ...rest })).pending;
  }

  /** Answers the pending request of a task. With `request_id` only this one, and the call can be repeated. */
  respond(answer: HitlRespond, options: CallOptions = {}): Promise<EngineSchemas["HitlResponded"]> {
    const args = { body: answer, ...options };
    return this.#api.call("post", "/hitl/respond", args);
  }

  /** The tool calls of a task that wait for a decision, with previews. */
  async approvals(taskId: string, options: CallOptions = {}): Promise<ApprovalRequest[]> {
    const path = { task_id: taskId };
    return (await this.#api.call("get", "/tasks/{task_id}/approvals", { path, ...options })).approvals;
  }

  /** Decides about a tool call. */
  decide(
    taskId: string,
    requestId: string,
    decision: ApprovalRespond,
    options: CallOptions = {},
  ): Promise<EngineSchemas["ApprovalResponded"]> {
    const path = { task_id: taskId, request_id: requestId };
    const args = { path, body: decision, ...options };
    return this.#api.call("post", "/tasks/{task_id}/approvals/{request_id}", args);
  }

  /** Lasting approvals. */
  async grants(options: CallOptions = {}): Promise<ApprovalGrant[]> {
    return (await this.#api.call("get", "/approvals/grants", options)).grants;
  }

  /** Revokes a lasting approval: from the next call on the person is asked again. */
  async revoke(grantId: string, options: CallOptions = {}): Promise<void> {
    await this.#api.call("delete", "/approvals/grants/{id}", { path: { id: grantId }, ...options });
  }
}
