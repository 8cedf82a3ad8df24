/** A fleet: the orchestrator, as a product sees it. */

import { Api, type CallOptions, encodeSegment } from "./api.js";
import { Engine } from "./engine.js";
import { DeadlineError, NetworkError, NotAdmittedError, ProtocolError } from "./errors.js";
import { type Access, type AccessSource, Http, type HttpOptions } from "./http.js";
import { byCursor, byOffset, type Pages } from "./pages.js";
import { Attempts } from "./retry.js";
import { readSse } from "./sse.js";
import { LinkedAbort, sleep, throwIfAborted, unlessAborted } from "./time.js";
import type {
  AuditRow,
  BrowserScope,
  BrowserTokenSummary,
  EngineRecord,
  EngineStatus,
  EngineSummary,
  Explanation,
  FleetMetrics,
  FleetStatus,
  InboxQuestion,
  MintedToken,
  OrchestratorPaths,
  OrchestratorSchemas,
  ProvisionedEngine,
  RevokedToken,
} from "./types.js";

export interface FleetOptions extends HttpOptions {
  /** The orchestrator's address. */
  readonly url: string;
  /** The product's platform key. */
  readonly productKey: string;
}

export interface AdmitOptions {
  /** Create the user's engine if there is none; true by default. */
  readonly autoProvision?: boolean | undefined;
  /** Wake the user's engine if it sleeps; true by default. */
  readonly autoWake?: boolean | undefined;
  /** How long all attempts together may take; 2 minutes by default. */
  readonly deadlineMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Reach the engine through the orchestrator, because its own address cannot be reached from here. */
  readonly viaProxy?: boolean | undefined;
}

const DEFAULT_ADMIT_MS = 120_000;
const PAGE_SIZE = 100;
/** The orchestrator sends a comment after 15 quiet seconds. */
const EVENTS_IDLE_MS = 45_000;
const EVENTS_RECONNECT_MS = 120_000;

/** The engines of one product. */
export class Fleet {
  /** Every endpoint of the orchestrator, typed. */
  readonly api: Api<OrchestratorPaths>;
  readonly #url: string;
  readonly #productKey: string;
  readonly #options: HttpOptions;

  constructor(options: FleetOptions) {
    this.#url = options.url.replace(/\/+$/, "");
    this.#productKey = options.productKey;
    this.#options = options;
    const access = { url: this.#url, headers: { "x-platform-key": options.productKey } };
    this.api = new Api(new Http({ current: () => access }, options));
  }

  /**
   * Admits a user: returns their engine, created or woken if necessary. While the fleet is busy or starting, and
   * while the product is over its rate, it is tried again, as `Retry-After` says. The engine is admitted again by
   * itself when it sleeps or its key was rotated.
   */
  async admit(userId: string, options: AdmitOptions = {}): Promise<Engine> {
    const record = await this.#admit(userId, options, options.signal);
    const access = new AdmittedAccess(this.#accessOf(record, options), async () =>
      this.#accessOf(await this.#admit(userId, options, undefined), options),
    );
    return new Engine({ ...this.#options, access });
  }

  /** Creates a user's engine. `admit` does it where necessary. */
  provision(
    userId: string,
    options: { readonly engineVersion?: string } & CallOptions = {},
  ): Promise<ProvisionedEngine> {
    const { engineVersion, ...rest } = options;
    const body = {
      user_id: userId,
      ...(engineVersion === undefined ? {} : { engine_version: engineVersion }),
    };
    return this.api.call("post", "/engines/provision", { body, ...rest });
  }

  /** The record of a user's engine, with its key. */
  engineRecord(userId: string, options: CallOptions = {}): Promise<EngineRecord> {
    return this.api.call("get", "/engines/{user_id}", { path: { user_id: userId }, ...options });
  }

  /** The product's engines in the order of their creation, without keys. */
  engines(
    options: { readonly status?: EngineStatus; readonly pageSize?: number } & CallOptions = {},
  ): Pages<EngineSummary> {
    const { status, pageSize = PAGE_SIZE, ...rest } = options;
    return byOffset(pageSize, async (limit, offset) => {
      const query = { status, limit, offset };
      return (await this.api.call("get", "/engines", { query, ...rest })).engines;
    });
  }

  /** Moves an engine to another image, to which it is pinned then, or to the deployment's (`default`). */
  changeVersion(
    userId: string,
    engineVersion: string,
    options: CallOptions = {},
  ): Promise<OrchestratorSchemas["ChangedVersion"]> {
    const args = { path: { user_id: userId }, body: { engine_version: engineVersion }, ...options };
    return this.api.call("put", "/engines/{user_id}/version", args);
  }

  /** Starts an engine that is stopped, sleeping or failed. Only this undoes a `stop`. */
  start(userId: string, options: CallOptions = {}): Promise<OrchestratorSchemas["StartedEngine"]> {
    return this.api.call("post", "/engines/{user_id}/start", { path: { user_id: userId }, ...options });
  }

  /** Stops an engine until `start`. Its data are kept. */
  stop(userId: string, options: CallOptions = {}): Promise<OrchestratorSchemas["StoppedEngine"]> {
    return this.api.call("post", "/engines/{user_id}/stop", { path: { user_id: userId }, ...options });
  }

  /** Wakes a user's engine, and creates none. */
  wake(userId: string, options: Omit<AdmitOptions, "autoProvision" | "autoWake"> = {}): Promise<Engine> {
    return this.admit(userId, { ...options, autoProvision: false, autoWake: true });
  }

  /** Removes an engine with all of its data. Irreversible. */
  destroy(userId: string, options: CallOptions = {}): Promise<OrchestratorSchemas["DestroyedEngine"]> {
    return this.api.call("delete", "/engines/{user_id}", { path: { user_id: userId }, ...options });
  }

  /** Replaces an engine's key, and returns the new one. The old one is invalid at once. */
  async rotateKey(userId: string, options: CallOptions = {}): Promise<string> {
    const path = { user_id: userId };
    return (await this.api.call("post", "/engines/{user_id}/rotate-key", { path, ...options })).new_api_key;
  }

  /** Why an engine is in its state, and what happens next. */
  explain(userId: string, options: CallOptions = {}): Promise<Explanation> {
    return this.api.call("get", "/engines/{user_id}/explain", { path: { user_id: userId }, ...options });
  }

  /** The newest lines of an engine's log. */
  async logs(userId: string, options: { readonly tail?: number } & CallOptions = {}): Promise<string[]> {
    const { tail, ...rest } = options;
    const args = { path: { user_id: userId }, query: { tail }, ...rest };
    return (await this.api.call("get", "/engines/{user_id}/logs", args)).lines;
  }

  /**
   * Mints a token with which a page may call the user's engine: what `scopes` permit, only `taskId` if it is given, for
   * 15 minutes by default. The page uses it as `new Engine({ url, token })`.
   */
  mintToken(
    userId: string,
    scopes: readonly BrowserScope[],
    options: { readonly taskId?: string; readonly lifetimeS?: number } & CallOptions = {},
  ): Promise<MintedToken> {
    const { taskId, lifetimeS, ...rest } = options;
    const body = {
      scopes: [...scopes],
      ...(taskId === undefined ? {} : { task_id: taskId }),
      ...(lifetimeS === undefined ? {} : { lifetime_s: lifetimeS }),
    };
    return this.api.call("post", "/engines/{user_id}/tokens", { path: { user_id: userId }, body, ...rest });
  }

  /** The tokens of a user's engine that have not expired, the newest first, without their secrets. */
  tokens(
    userId: string,
    options: { readonly pageSize?: number } & CallOptions = {},
  ): Pages<BrowserTokenSummary> {
    const { pageSize = PAGE_SIZE, ...rest } = options;
    return byCursor(async (before?: string) => {
      const args = { path: { user_id: userId }, query: { limit: pageSize, before }, ...rest };
      const { tokens } = await this.api.call("get", "/engines/{user_id}/tokens", args);
      return { items: tokens, next: tokens.length < pageSize ? null : tokens.at(-1)?.token_id };
    });
  }

  /** Revokes a token. `in_force` is false while the engine runs and has not been reached. */
  revokeToken(userId: string, tokenId: string, options: CallOptions = {}): Promise<RevokedToken> {
    const path = { user_id: userId, token_id: tokenId };
    return this.api.call("delete", "/engines/{user_id}/tokens/{token_id}", { path, ...options });
  }

  /** The origins of the product's pages, which may call its engines with tokens. */
  async origins(options: CallOptions = {}): Promise<string[]> {
    return (await this.api.call("get", "/origins", options)).origins;
  }

  /** Replaces the origins of the product's pages. */
  async setOrigins(origins: readonly string[], options: CallOptions = {}): Promise<string[]> {
    return (await this.api.call("put", "/origins", { body: { origins: [...origins] }, ...options })).origins;
  }

  /** What waits for a person at the product's engines, also at those that sleep, the oldest question first. */
  inbox(
    options: { readonly userId?: string; readonly pageSize?: number } & CallOptions = {},
  ): Pages<InboxQuestion> {
    const { userId, pageSize = PAGE_SIZE, ...rest } = options;
    return byCursor(async (after?: string) => {
      const query = { limit: pageSize, after, user_id: userId };
      const { questions } = await this.api.call("get", "/inbox", { query, ...rest });
      return { items: questions, next: questions.length < pageSize ? null : questions.at(-1)?.request_id };
    });
  }

  status(options: CallOptions = {}): Promise<FleetStatus> {
    return this.api.call("get", "/status", options);
  }

  metrics(options: CallOptions = {}): Promise<FleetMetrics> {
    return this.api.call("get", "/metrics", options);
  }

  /** The product's audit log, the newest row first. */
  audit(
    options: {
      readonly userId?: string;
      readonly event?: AuditRow["event"];
      readonly pageSize?: number;
    } & CallOptions = {},
  ): Pages<AuditRow> {
    const { userId, event, pageSize = PAGE_SIZE, ...rest } = options;
    return byCursor(async (before?: number) => {
      const query = { limit: pageSize, before, event, user_id: userId };
      const { rows } = await this.api.call("get", "/audit", { query, ...rest });
      return { items: rows, next: rows.length < pageSize ? null : rows.at(-1)?.id };
    });
  }

  /**
   * The rows of the audit log as they are written, after the row `after` (0: all), by default from now on. Goes on
   * until it is left, over as many connections as it takes.
   */
  async *events(
    options: { readonly after?: number; readonly signal?: AbortSignal } = {},
  ): AsyncGenerator<AuditRow, void, undefined> {
    const abort = new LinkedAbort(options.signal);
    const attempts = new Attempts(EVENTS_RECONNECT_MS);
    let after = options.after;
    try {
      for (;;) {
        let failure: unknown = new NetworkError("the stream ended", { sent: true });
        try {
          const call = { method: "GET", path: "/events", query: { after }, signal: abort.signal, retryMs: 0 };
          const response = await this.api.http.stream(call);
          for await (const messages of readSse(response, EVENTS_IDLE_MS, abort.signal)) {
            attempts.reset();
            for (const message of messages) {
              const row = parseRow(message.data);
              after = row.id;
              yield row;
            }
          }
        } catch (error) {
          throwIfAborted(abort.signal);
          failure = error;
        }
        const pause = attempts.pauseAfter(failure);
        if (pause === undefined) throw failure;
        await sleep(pause, abort.signal);
      }
    } finally {
      abort.abort(new DOMException("the events are not read any more", "AbortError"));
      abort.release();
    }
  }

  async #admit(
    userId: string,
    options: AdmitOptions,
    signal: AbortSignal | undefined,
  ): Promise<EngineRecord> {
    const deadlineMs = options.deadlineMs ?? DEFAULT_ADMIT_MS;
    const body = { auto_provision: options.autoProvision ?? true, auto_wake: options.autoWake ?? true };
    const admission = await this.api.http
      .json<OrchestratorSchemas["Admission"]>({
        method: "POST",
        path: `/engines/${encodeSegment(userId)}/admit`,
        json: body,
        signal,
        repeatable: true,
        timeoutMs: deadlineMs,
        retryMs: deadlineMs,
      })
      .catch((error: unknown) => {
        throw error instanceof DeadlineError
          ? new DeadlineError(`\`${userId}\` was not admitted within ${(deadlineMs / 1_000).toString()} s`, {
              cause: error,
            })
          : error;
      });
    if (!admission.admitted) throw new NotAdmittedError(userId, admission.reason ?? "unknown");
    if (admission.engine == null) throw new ProtocolError("the answer of an admit has no engine");
    return admission.engine;
  }

  #accessOf(record: EngineRecord, options: AdmitOptions): Access {
    if (options.viaProxy === true) {
      const url = `${this.#url}/engines/${encodeSegment(record.user_id)}/proxy`;
      return { url, headers: { "x-platform-key": this.#productKey } };
    }
    if (record.url == null) throw new ProtocolError("the record of an admitted engine has no address");
    return { url: record.url.replace(/\/+$/, ""), headers: { "x-engine-key": record.api_key } };
  }
}

/** Access that is renewed by another admission, which all calls that need it share. */
class AdmittedAccess implements AccessSource {
  #access: Access;
  #renewal: Promise<Access> | undefined;
  readonly #admit: () => Promise<Access>;

  constructor(access: Access, admit: () => Promise<Access>) {
    this.#access = access;
    this.#admit = admit;
  }

  current(): Access {
    return this.#access;
  }

  renew(stale: Access, signal: AbortSignal | undefined): Promise<Access> {
    if (this.#access !== stale) return Promise.resolve(this.#access);
    this.#renewal ??= this.#admit()
      .then((access) => (this.#access = access))
      .finally(() => {
        this.#renewal = undefined;
      });
    return unlessAborted(this.#renewal, signal);
  }
}

function parseRow(data: string): AuditRow {
  try {
    return JSON.parse(data) as AuditRow;
  } catch (cause) {
    throw new ProtocolError("the data of a row of the audit log is not JSON", { cause });
  }
}
