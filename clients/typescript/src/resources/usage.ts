/** Tokens, costs and the time of tools. */

import type { Api, CallOptions } from "../api.js";
import { byCursor, type Pages } from "../pages.js";
import type { EnginePaths, EngineSchemas, UsageRow } from "../types.js";

/** What rows of usage can be grouped by. */
export type UsageGroup = "day" | "task" | "model" | "agent" | "purpose";

export interface UsageQuery extends CallOptions {
  /** The first and the last day (`2026-11-26`), both included. */
  readonly from?: string;
  readonly to?: string;
  readonly utcOffsetMinutes?: number;
  readonly groupBy?: readonly UsageGroup[];
  readonly taskId?: string;
  readonly pageSize?: number;
}

/** The usage of an engine. */
export class UsageReports {
  readonly #api: Api<EnginePaths>;

  constructor(api: Api<EnginePaths>) {
    this.#api = api;
  }

  /** Usage in rows. */
  rows(query: UsageQuery = {}): Pages<UsageRow> {
    return byCursor(async (after?: string) => {
      const page = await this.#report(query, query.pageSize, after);
      return { items: page.rows, next: page.next };
    });
  }

  /** The sum of all rows. */
  async total(query: UsageQuery = {}): Promise<EngineSchemas["UsageFigures"]> {
    return (await this.#report(query, 1, undefined)).total;
  }

  /** The caps on usage, and what of them is used. */
  async caps(options: { readonly taskId?: string } & CallOptions = {}): Promise<EngineSchemas["UsageCap"][]> {
    const { taskId, ...rest } = options;
    return (await this.#api.call("get", "/usage/caps", { query: { task_id: taskId }, ...rest })).caps;
  }

  #report(
    query: UsageQuery,
    limit: number | undefined,
    after: string | undefined,
  ): Promise<EngineSchemas["UsageReport"]> {
    const parameters = {
      from: query.from,
      to: query.to,
      utc_offset_minutes: query.utcOffsetMinutes,
      group_by: query.groupBy?.join(","),
      task_id: query.taskId,
      limit,
      after,
    };
    const { signal, timeoutMs } = query;
    return this.#api.call("get", "/usage", { query: parameters, signal, timeoutMs });
  }
}
