/** The cancellation of one turn, running or queued, and never of another one. */

import type { Api } from "./api.js";
import { TaskNotFoundError, TaskNotRunningError, TurnNotFoundError } from "./error-codes.js";
import { sleep } from "./time.js";
import type { EnginePaths, TurnRecord } from "./types.js";

/** A turn as paths and bodies name it. */
export interface TurnName {
  readonly task_id: string;
  readonly turn_id: string;
}

const PAUSE_MS = 100;
/** For longer than this no turn is between the queue and its beginning, or between two processes of its engine. */
const MAX_SEARCH_MS = 60_000;

/** Cancels a turn, or takes its message out of the queue. Returns false if it has ended otherwise. */
export async function cancelTurn(api: Api<EnginePaths>, turn: TurnName): Promise<boolean> {
  const deadline = Date.now() + MAX_SEARCH_MS;
  for (;;) {
    try {
      await api.callRepeatable("post", "/execute/cancel", { body: turn });
      return true;
    } catch (error) {
      if (!(error instanceof TaskNotRunningError || isGone(error))) throw error;
      if (await takeOut(api, turn)) return true;
      const state = await stateOf(api, turn);
      if (state === "cancelled") return true;
      if (state === undefined || state === "completed" || state === "failed") return false;
      // Its turn began between the two calls, or its engine did just now: the next round finds it.
      if (Date.now() > deadline) throw error;
    }
    await sleep(PAUSE_MS);
  }
}

/** Whether the message was in the queue, out of which it is now. */
async function takeOut(api: Api<EnginePaths>, path: TurnName): Promise<boolean> {
  try {
    await api.callRepeatable("delete", "/tasks/{task_id}/queue/{turn_id}", { path });
    return true;
  } catch (error) {
    if (isGone(error)) return false;
    throw error;
  }
}

/** Undefined if the turn is not part of its task any more. */
async function stateOf(api: Api<EnginePaths>, path: TurnName): Promise<TurnRecord["state"] | undefined> {
  try {
    return (await api.call("get", "/tasks/{task_id}/turns/{turn_id}", { path })).state;
  } catch (error) {
    if (isGone(error)) return undefined;
    throw error;
  }
}

/** The task or the turn is not there any more. */
export function isGone(error: unknown): boolean {
  return error instanceof TaskNotFoundError || error instanceof TurnNotFoundError;
}
