/** Messages that an engine sends itself at given times. */

import type { Api, CallOptions } from "../api.js";
import { randomId } from "../random.js";
import type { EnginePaths, EngineSchemas, Schedule, ScheduleRun } from "../types.js";

/** The schedules of an engine. */
export class Schedules {
  readonly #api: Api<EnginePaths>;

  constructor(api: Api<EnginePaths>) {
    this.#api = api;
  }

  /** All schedules, the oldest first. */
  async list(options: CallOptions = {}): Promise<Schedule[]> {
    return (await this.#api.call("get", "/schedules", options)).schedules;
  }

  /** One schedule with its newest runs. */
  get(id: string, options: CallOptions = {}): Promise<Schedule> {
    return this.#api.call("get", "/schedules/{id}", { path: { id }, ...options });
  }

  /** Sets a schedule. Its `id`, which is made here if it is missing, makes the call safe to repeat. */
  create(schedule: EngineSchemas["CreateSchedule"], options: CallOptions = {}): Promise<Schedule> {
    const body = { ...schedule, id: schedule.id ?? randomId() };
    return this.#api.callRepeatable("post", "/schedules", { body, ...options });
  }

  /** Changes what `changes` names; `paused` pauses or resumes it. */
  update(id: string, changes: EngineSchemas["UpdateSchedule"], options: CallOptions = {}): Promise<Schedule> {
    return this.#api.callRepeatable("patch", "/schedules/{id}", { path: { id }, body: changes, ...options });
  }

  /** Runs a schedule now, once, however often the call is repeated. */
  run(id: string, options: { readonly clientRequestId?: string } & CallOptions = {}): Promise<ScheduleRun> {
    const { clientRequestId = randomId(), ...rest } = options;
    const query = { client_request_id: clientRequestId };
    return this.#api.callRepeatable("post", "/schedules/{id}/run", { path: { id }, query, ...rest });
  }

  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.#api.call("delete", "/schedules/{id}", { path: { id }, ...options });
  }
}
