/** Tasks: their messages, turns, queue and working memory, and the conversations that a product shows. */

import { type Api, type CallOptions, fillPath } from "../api.js";
import { Download, type DownloadOptions } from "../download.js";
import { byCursor, byOffset, type Pages } from "../pages.js";
import type {
  AttachedFile,
  Conversation,
  ConversationHit,
  ConversationMessage,
  EnginePaths,
  EngineSchemas,
  TaskSummary,
  TurnRecord,
} from "../types.js";

/** The size of a page, if the caller does not say. */
const PAGE_SIZE = 50;

export interface ListOptions extends CallOptions {
  /** How many entries one call fetches. */
  readonly pageSize?: number | undefined;
}

/** The tasks of an engine. */
export class Tasks {
  readonly #api: Api<EnginePaths>;

  constructor(api: Api<EnginePaths>) {
    this.#api = api;
  }

  /** All tasks, the most recently changed first. */
  list(options: ListOptions = {}): Pages<TaskSummary> {
    const { pageSize = PAGE_SIZE, ...rest } = options;
    return byOffset(pageSize, async (limit, offset) => {
      const { tasks } = await this.#api.call("get", "/tasks", { query: { limit, offset }, ...rest });
      return tasks;
    });
  }

  /** The messages of a task, the newest first. */
  messages(taskId: string, options: ListOptions = {}): Pages<ConversationMessage> {
    const { pageSize = PAGE_SIZE, ...rest } = options;
    return byCursor(async (before?: string) => {
      const query = { limit: pageSize, before };
      const path = { task_id: taskId };
      const page = await this.#api.call("get", "/tasks/{task_id}/messages", { path, query, ...rest });
      return {
        items: page.messages.toReversed(),
        next: page.has_older ? page.messages[0]?.message_id : null,
      };
    });
  }

  /** The turns of a task without their texts: queued ones first, then the newest first. */
  turns(taskId: string, options: ListOptions = {}): Pages<TurnRecord> {
    const { pageSize = PAGE_SIZE, ...rest } = options;
    return byCursor(async (before?: string) => {
      const query = { limit: pageSize, before };
      const path = { task_id: taskId };
      const { turns } = await this.#api.call("get", "/tasks/{task_id}/turns", { path, query, ...rest });
      return { items: turns, next: turns.length < pageSize ? null : turns.at(-1)?.turn_id };
    });
  }

  /** One turn. */
  turn(taskId: string, turnId: string, options: CallOptions = {}): Promise<TurnRecord> {
    const path = { task_id: taskId, turn_id: turnId };
    return this.#api.call("get", "/tasks/{task_id}/turns/{turn_id}", { path, ...options });
  }

  /** The messages that wait for their turn, the next one first. */
  async queue(taskId: string, options: CallOptions = {}): Promise<EngineSchemas["QueuedMessage"][]> {
    const path = { task_id: taskId };
    return (await this.#api.call("get", "/tasks/{task_id}/queue", { path, ...options })).entries;
  }

  /** Takes a message out of the queue. */
  async cancelQueued(taskId: string, turnId: string, options: CallOptions = {}): Promise<void> {
    const path = { task_id: taskId, turn_id: turnId };
    await this.#api.call("delete", "/tasks/{task_id}/queue/{turn_id}", { path, ...options });
  }

  /** The files that are attached to the messages of a task; `downloadMedia` fetches one. */
  async media(taskId: string, options: CallOptions = {}): Promise<AttachedFile[]> {
    const path = { task_id: taskId };
    return (await this.#api.call("get", "/tasks/{task_id}/media", { path, ...options })).media;
  }

  /** The working memory of a task. */
  async memory(taskId: string, options: CallOptions = {}): Promise<Record<string, unknown>> {
    const path = { task_id: taskId };
    return (await this.#api.call("get", "/tasks/{task_id}/memory", { path, ...options })).memory;
  }

  /** Replaces the working memory of a task. */
  async replaceMemory(
    taskId: string,
    memory: Readonly<Record<string, unknown>>,
    options: CallOptions = {},
  ): Promise<Record<string, unknown>> {
    const args = { path: { task_id: taskId }, body: { memory }, ...options };
    return (await this.#api.callRepeatable("put", "/tasks/{task_id}/memory", args)).memory;
  }

  /** Erases a task; with `forgetKnowledge` also what was learned from it. */
  async delete(
    taskId: string,
    options: { readonly forgetKnowledge?: boolean } & CallOptions = {},
  ): Promise<void> {
    const { forgetKnowledge, ...rest } = options;
    const query = forgetKnowledge === true ? { forget: "knowledge" as const } : {};
    await this.#api.call("delete", "/tasks/{task_id}", { path: { task_id: taskId }, query, ...rest });
  }

  /** Sets a key of the working memory of a task. */
  async setMemory(
    taskId: string,
    key: string,
    value: unknown,
    options: CallOptions = {},
  ): Promise<Record<string, unknown>> {
    const args = { path: { task_id: taskId, key }, body: { value }, ...options };
    return (await this.#api.callRepeatable("put", "/tasks/{task_id}/memory/{key}", args)).memory;
  }

  /** What a task has used, with its sub-agents. */
  async usage(taskId: string, options: CallOptions = {}): Promise<EngineSchemas["UsageFigures"]> {
    const path = { task_id: taskId };
    return (await this.#api.call("get", "/tasks/{task_id}/usage", { path, ...options })).usage;
  }

  /** Begins to download a file that is attached to a message of a task. */
  downloadMedia(taskId: string, hash: string, options: DownloadOptions = {}): Promise<Download> {
    const path = fillPath("/tasks/{task_id}/media/{hash}", { task_id: taskId, hash });
    return Download.open(this.#api.http, path, undefined, options);
  }

  /** The conversations, the most recently changed first. */
  conversations(
    options: { readonly archived?: boolean; readonly pinned?: boolean } & ListOptions = {},
  ): Pages<Conversation> {
    const { pageSize = PAGE_SIZE, archived, pinned, ...rest } = options;
    return byCursor(async (after?: string) => {
      const query = { limit: pageSize, after, archived, pinned };
      const page = await this.#api.call("get", "/conversations", { query, ...rest });
      return { items: page.conversations, next: page.next };
    });
  }

  /** Searches the messages of all tasks; the best result comes first. */
  async search(
    query: string,
    options: { readonly limit?: number } & CallOptions = {},
  ): Promise<ConversationHit[]> {
    const { limit, ...rest } = options;
    const parameters = { q: query, limit };
    return (await this.#api.call("get", "/conversations/search", { query: parameters, ...rest })).results;
  }

  /** One conversation. */
  conversation(taskId: string, options: CallOptions = {}): Promise<Conversation> {
    return this.#api.call("get", "/tasks/{task_id}/conversation", { path: { task_id: taskId }, ...options });
  }

  /** Changes the title, the metadata and the marks that `changes` names. */
  updateConversation(
    taskId: string,
    changes: EngineSchemas["UpdateConversation"],
    options: CallOptions = {},
  ): Promise<Conversation> {
    const args = { path: { task_id: taskId }, body: changes, ...options };
    return this.#api.callRepeatable("patch", "/tasks/{task_id}/conversation", args);
  }

  /** Copies a conversation into a new task, by default all of it. */
  fork(taskId: string, into: EngineSchemas["ForkTask"], options: CallOptions = {}): Promise<Conversation> {
    const args = { path: { task_id: taskId }, body: into, ...options };
    return this.#api.callRepeatable("post", "/tasks/{task_id}/fork", args);
  }
}
