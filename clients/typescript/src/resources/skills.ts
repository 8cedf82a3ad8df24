/** Named instructions and scripts that the agent loads when it needs them. */

import type { Api, CallOptions } from "../api.js";
import type { EnginePaths, EngineSchemas, Skill } from "../types.js";

/** The skills of an engine: those of the platform and the user's own. */
export class Skills {
  readonly #api: Api<EnginePaths>;

  constructor(api: Api<EnginePaths>) {
    this.#api = api;
  }

  /** All skills, ordered by name. */
  async list(options: CallOptions = {}): Promise<EngineSchemas["SkillSummary"][]> {
    return (await this.#api.call("get", "/skills", options)).skills;
  }

  get(name: string, options: CallOptions = {}): Promise<Skill> {
    return this.#api.call("get", "/skills/{name}", { path: { name }, ...options });
  }

  create(skill: EngineSchemas["CreateSkill"], options: CallOptions = {}): Promise<Skill> {
    return this.#api.call("post", "/skills/create", { body: skill, ...options });
  }

  /** Changes what `changes` names. */
  update(name: string, changes: EngineSchemas["UpdateSkill"], options: CallOptions = {}): Promise<Skill> {
    return this.#api.callRepeatable("put", "/skills/{name}", { path: { name }, body: changes, ...options });
  }

  async delete(name: string, options: CallOptions = {}): Promise<void> {
    await this.#api.call("delete", "/skills/{name}", { path: { name }, ...options });
  }
}
