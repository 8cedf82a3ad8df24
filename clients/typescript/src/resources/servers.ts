/** Tool servers: those of the catalog with the user's connections to them, and the user's own. */

import type { Api, CallOptions } from "../api.js";
import type { Connection, EnginePaths, EngineSchemas } from "../types.js";

/** The user's connections to the tool servers of the catalog. */
export class Connections {
  readonly #api: Api<EnginePaths>;

  constructor(api: Api<EnginePaths>) {
    this.#api = api;
  }

  /** The tool servers of the catalog, ordered by name. */
  async servers(options: CallOptions = {}): Promise<EngineSchemas["Server"][]> {
    return (await this.#api.call("get", "/assets/servers", options)).servers;
  }

  /** The user's connections, the oldest first. */
  async list(options: CallOptions = {}): Promise<Connection[]> {
    return (await this.#api.call("get", "/assets/connections", options)).connections;
  }

  /** Connects a server, or returns the address at which the user must authorize that. */
  connect(
    request: EngineSchemas["Connect"],
    options: CallOptions = {},
  ): Promise<EngineSchemas["ConnectOutcome"]> {
    return this.#api.call("post", "/assets/connect", { body: request, ...options });
  }

  /** Revokes the stored credentials of a connection and removes it. */
  async disconnect(connection: string, options: CallOptions = {}): Promise<void> {
    await this.#api.call("delete", "/assets/connections/{connection}", { path: { connection }, ...options });
  }
}

/** The tool servers that the user has added. */
export class Servers {
  readonly #api: Api<EnginePaths>;

  constructor(api: Api<EnginePaths>) {
    this.#api = api;
  }

  async list(options: CallOptions = {}): Promise<EngineSchemas["UserServer"][]> {
    return (await this.#api.call("get", "/mcp/servers", options)).servers;
  }

  get(name: string, options: CallOptions = {}): Promise<EngineSchemas["UserServer"]> {
    return this.#api.call("get", "/mcp/servers/{name}", { path: { name }, ...options });
  }

  add(
    server: EngineSchemas["AddUserServer"],
    options: CallOptions = {},
  ): Promise<EngineSchemas["UserServer"]> {
    return this.#api.callRepeatable("post", "/mcp/servers", { body: server, ...options });
  }

  /** Changes what `changes` names. */
  update(
    name: string,
    changes: EngineSchemas["UpdateUserServer"],
    options: CallOptions = {},
  ): Promise<EngineSchemas["UserServer"]> {
    return this.#api.callRepeatable("patch", "/mcp/servers/{name}", {
      path: { name },
      body: changes,
      ...options,
    });
  }

  /** Approves the tools that were shown, which `digest` names. */
  approve(
    name: string,
    approval: EngineSchemas["ApproveTools"],
    options: CallOptions = {},
  ): Promise<EngineSchemas["UserServer"]> {
    return this.#api.call("post", "/mcp/servers/{name}/approve", {
      path: { name },
      body: approval,
      ...options,
    });
  }

  async delete(name: string, options: CallOptions = {}): Promise<void> {
    await this.#api.call("delete", "/mcp/servers/{name}", { path: { name }, ...options });
  }
}
