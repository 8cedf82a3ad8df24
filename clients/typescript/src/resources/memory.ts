/** What an engine knows: facts, knowledge, episodes and lessons; export and import. */

import type { Api, CallOptions } from "../api.js";
import { byOffset, type Pages } from "../pages.js";
import type { EnginePaths, EngineSchemas, Episode, Fact, Knowledge, Lesson } from "../types.js";
import type { ListOptions } from "./tasks.js";

const PAGE_SIZE = 50;

/** The memory of an engine. */
export class Memory {
  readonly #api: Api<EnginePaths>;

  constructor(api: Api<EnginePaths>) {
    this.#api = api;
  }

  /** Searches what is remembered; the best result comes first. */
  async search(
    query: string,
    options: { readonly limit?: number } & CallOptions = {},
  ): Promise<EngineSchemas["KnowledgeResult"][]> {
    const { limit, ...rest } = options;
    const body = limit === undefined ? { query } : { query, limit };
    return (await this.#api.callRepeatable("post", "/memory/knowledge/search", { body, ...rest })).results;
  }

  /** What the engine knows about its user now, the last said first. */
  facts(options: { readonly tag?: string } & ListOptions = {}): Pages<Fact> {
    const { pageSize = PAGE_SIZE, tag, ...rest } = options;
    return byOffset(pageSize, async (limit, offset) => {
      const query = { limit, offset, tag };
      return (await this.#api.call("get", "/memory/facts", { query, ...rest })).facts;
    });
  }

  fact(id: string, options: CallOptions = {}): Promise<Fact> {
    return this.#api.call("get", "/memory/facts/{id}", { path: { id }, ...options });
  }

  /** Replaces a fact by what is right. */
  correct(id: string, correction: EngineSchemas["CorrectFact"], options: CallOptions = {}): Promise<Fact> {
    return this.#api.call("put", "/memory/facts/{id}", { path: { id }, body: correction, ...options });
  }

  /** Erases a fact with all that it replaced. */
  async forget(id: string, options: CallOptions = {}): Promise<void> {
    await this.#api.call("delete", "/memory/facts/{id}", { path: { id }, ...options });
  }

  /** All records of knowledge, the newest first. */
  list(options: ListOptions = {}): Pages<Knowledge> {
    const { pageSize = PAGE_SIZE, ...rest } = options;
    return byOffset(pageSize, async (limit, offset) => {
      const query = { limit, offset };
      return (await this.#api.call("get", "/memory/knowledge", { query, ...rest })).knowledge;
    });
  }

  /** Saves a record of knowledge. */
  save(knowledge: EngineSchemas["SaveKnowledge"], options: CallOptions = {}): Promise<Knowledge> {
    return this.#api.call("post", "/memory/knowledge", { body: knowledge, ...options });
  }

  /** Erases a record of knowledge. */
  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.#api.call("delete", "/memory/knowledge/{id}", { path: { id }, ...options });
  }

  /** What was done in earlier turns, the newest first. */
  episodes(options: ListOptions = {}): Pages<Episode> {
    const { pageSize = PAGE_SIZE, ...rest } = options;
    return byOffset(pageSize, async (limit, offset) => {
      const query = { limit, offset };
      return (await this.#api.call("get", "/memory/episodes", { query, ...rest })).episodes;
    });
  }

  /** The lessons in force, the newest first. */
  lessons(options: ListOptions = {}): Pages<Lesson> {
    const { pageSize = PAGE_SIZE, ...rest } = options;
    return byOffset(pageSize, async (limit, offset) => {
      const query = { limit, offset };
      return (await this.#api.call("get", "/memory/lessons", { query, ...rest })).lessons;
    });
  }

  /** Takes a lesson back. */
  async undoLesson(id: string, options: CallOptions = {}): Promise<void> {
    await this.#api.call("delete", "/memory/lessons/{id}", { path: { id }, ...options });
  }

  /** The whole brain as one JSON document. A document that is cut off lacks its closing brace. */
  async export(options: CallOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const response = await this.#api.http.stream({ method: "GET", path: "/memory/export", ...options });
    return response.body ?? new ReadableStream();
  }

  /** Takes a document of `export` over: all of it or nothing. `merge` keeps what is there, and can be repeated. */
  import(
    document: BodyInit,
    options: { readonly mode: EngineSchemas["ImportMode"] } & CallOptions,
  ): Promise<EngineSchemas["Imported"]> {
    const { mode, timeoutMs = 3_600_000, ...rest } = options;
    const headers = { "content-type": "application/json" };
    const call = { method: "POST", path: "/memory/import", query: { mode }, body: document, headers };
    return this.#api.http.json({ ...call, timeoutMs, ...rest });
  }
}
