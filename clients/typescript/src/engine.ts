/** A user's engine. */

import { Api, type CallOptions } from "./api.js";
import type { Download, DownloadOptions } from "./download.js";
import { beginInBackground, executeBody, type TurnFields } from "./execute.js";
import { type AccessSource, Http, type HttpOptions } from "./http.js";
import type { Pages } from "./pages.js";
import { type FileInfo, type FilePath, Files } from "./resources/files.js";
import { Hitl } from "./resources/hitl.js";
import { Memory } from "./resources/memory.js";
import { Schedules } from "./resources/schedules.js";
import { Connections, Servers } from "./resources/servers.js";
import { Skills } from "./resources/skills.js";
import { type ListOptions, Tasks } from "./resources/tasks.js";
import { type UsageQuery, UsageReports } from "./resources/usage.js";
import { Turn, type TurnOptions } from "./turn.js";
import type {
  BackgroundTurn,
  ConversationMessage,
  EngineHealth,
  EnginePaths,
  EngineSchemas,
  Feedback,
  FileEntry,
  UploadedFile,
  UsageRow,
} from "./types.js";
import type { UploadBody, UploadOptions } from "./upload.js";

export type RunOptions = TurnFields & TurnOptions;

/** Which turn of a task is meant. */
export interface OfTurn {
  /** Only this turn: a `TaskNotRunningError` if it has ended, also while another one runs. By default any. */
  readonly turnId?: string | undefined;
}

export type EngineOptions = HttpOptions & {
  /** The engine's address; with a token also that of the orchestrator's proxy to it. */
  readonly url: string;
} & (
    | {
        /** The engine's key. */
        readonly key: string;
      }
    | {
        /** A browser token, which the product's backend has minted with `fleet.mintToken`. */
        readonly token: string;
      }
  );

/** A user's engine. One that a `Fleet` has admitted is admitted again if it sleeps or its key was rotated. */
export class Engine {
  /** Every endpoint of the engine, typed: `engine.api.call("get", "/skills", {})`. */
  readonly api: Api<EnginePaths>;
  readonly tasks: Tasks;
  readonly memory: Memory;
  readonly schedules: Schedules;
  readonly skills: Skills;
  readonly hitl: Hitl;
  readonly connections: Connections;
  readonly servers: Servers;
  readonly #files: Files;
  readonly #usage: UsageReports;
  readonly #access: AccessSource;

  constructor(options: EngineOptions | ({ readonly access: AccessSource } & HttpOptions)) {
    this.#access = "access" in options ? options.access : fixedAccess(options);
    this.api = new Api(new Http(this.#access, options));
    this.tasks = new Tasks(this.api);
    this.memory = new Memory(this.api);
    this.schedules = new Schedules(this.api);
    this.skills = new Skills(this.api);
    this.hitl = new Hitl(this.api);
    this.connections = new Connections(this.api);
    this.servers = new Servers(this.api);
    this.#files = new Files(this.api);
    this.#usage = new UsageReports(this.api);
  }

  /** The engine's present address. */
  get url(): string {
    return this.#access.current().url;
  }

  /**
   * Sends a message to a task and returns its turn. It is sent when the turn is read: iterate over it, or await
   * `text()` or `result()`.
   */
  run(taskId: string, message: string, options: RunOptions = {}): Turn {
    const { onRequest, signal, reconnectMs, idleMs, ...fields } = options;
    const body = executeBody(taskId, message, fields);
    return new Turn(this.api, { kind: "message", body }, { onRequest, signal, reconnectMs, idleMs });
  }

  /** Sends a message whose turn nobody needs to watch. `follow` reads it later. */
  start(taskId: string, message: string, options: TurnFields & CallOptions = {}): Promise<BackgroundTurn> {
    const { signal, timeoutMs, ...fields } = options;
    return beginInBackground(this.api, executeBody(taskId, message, fields), { signal, timeoutMs });
  }

  /** Reads a turn that was begun elsewhere, after the position `after`, by default from its beginning. */
  follow(taskId: string, turnId: string, options: { readonly after?: number } & TurnOptions = {}): Turn {
    const { after = 0, ...rest } = options;
    return new Turn(this.api, { kind: "followed", taskId, turnId, after }, rest);
  }

  /** Hands the running turn of a task a message. */
  steer(
    taskId: string,
    message: string,
    options: OfTurn & CallOptions = {},
  ): Promise<EngineSchemas["Steered"]> {
    const { turnId = null, ...rest } = options;
    const body = { task_id: taskId, turn_id: turnId, message };
    return this.api.call("post", "/execute/steer", { body, ...rest });
  }

  /** Cancels the running turn of a task: any, or the one with `turnId`. `turn.cancel()` also finds a queued one. */
  cancel(taskId: string, options: OfTurn & CallOptions = {}): Promise<EngineSchemas["Cancelled"]> {
    const { turnId = null, ...rest } = options;
    return this.api.call("post", "/execute/cancel", { body: { task_id: taskId, turn_id: turnId }, ...rest });
  }

  /** Uploads a file into the workspace. */
  upload(path: FilePath, body: UploadBody, options: UploadOptions = {}): Promise<UploadedFile> {
    return this.#files.upload(path, body, options);
  }

  /** Begins to download a file of the workspace. */
  download(path: FilePath, options: DownloadOptions = {}): Promise<Download> {
    return this.#files.download(path, options);
  }

  /** Begins to download a folder, by default the workspace, as a ZIP archive. */
  downloadArchive(folder: FilePath = "", options: CallOptions = {}): Promise<Download> {
    return this.#files.archive(folder, options);
  }

  /** The entries of a folder, by default of the workspace. */
  files(folder: FilePath = "", options: ListOptions = {}): Pages<FileEntry> {
    return this.#files.list(folder, options);
  }

  /** Looks at a file without its content. */
  fileInfo(path: FilePath, options: CallOptions = {}): Promise<FileInfo> {
    return this.#files.stat(path, options);
  }

  /** Deletes a file or an empty folder; with `recursive` any folder. */
  deleteFile(path: FilePath, options: { readonly recursive?: boolean } & CallOptions = {}): Promise<void> {
    return this.#files.delete(path, options);
  }

  /** What was used, in rows. */
  usage(query: UsageQuery = {}): Pages<UsageRow> {
    return this.#usage.rows(query);
  }

  /** The sum of what was used. */
  usageTotal(query: UsageQuery = {}): Promise<EngineSchemas["UsageFigures"]> {
    return this.#usage.total(query);
  }

  /** The caps on usage, and what of them is used. */
  usageCaps(options: { readonly taskId?: string } & CallOptions = {}): Promise<EngineSchemas["UsageCap"][]> {
    return this.#usage.caps(options);
  }

  /** Calls a skill, a tool or an operation on the memory directly, without a turn. */
  async rpc(
    method: string,
    params: Readonly<Record<string, unknown>> = {},
    options: { readonly fields?: Readonly<Record<string, unknown>> } & CallOptions = {},
  ): Promise<unknown> {
    const { fields, ...rest } = options;
    const json = { ...fields, method, params };
    return (await this.api.http.json<{ result: unknown }>({ method: "POST", path: "/rpc", json, ...rest }))
      .result;
  }

  /** The messages of a task, the newest first. */
  messages(taskId: string, options: ListOptions = {}): Pages<ConversationMessage> {
    return this.tasks.messages(taskId, options);
  }

  /** Tells the engine what was wrong or right about the newest turn of a task. */
  feedback(feedback: Feedback, options: CallOptions = {}): Promise<EngineSchemas["FeedbackRecorded"]> {
    return this.api.call("post", "/feedback", { body: feedback, ...options });
  }

  /** How the engine is. */
  health(options: CallOptions = {}): Promise<EngineHealth> {
    return this.api.call("get", "/health", options);
  }
}

function fixedAccess(options: EngineOptions): AccessSource {
  const headers: Record<string, string> =
    "key" in options ? { "x-engine-key": options.key } : { authorization: `Bearer ${options.token}` };
  const access = { url: options.url.replace(/\/+$/, ""), headers };
  return { current: () => access };
}
