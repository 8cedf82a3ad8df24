/** The messages that begin turns. */

import type { Api, CallOptions } from "./api.js";
import { randomId } from "./random.js";
import type { BackgroundTurn, EnginePaths, Execute } from "./types.js";

/** The fields of `POST /execute` beside the message, under the names that they have there. */
export type TurnFields = Omit<Execute, "task_id" | "message" | "background">;

/** A message with an idempotency key, unless it may be given to a running turn: then the engine takes none. */
export function executeBody(taskId: string, message: string, fields: TurnFields): Execute {
  const key = fields.on_busy === "steer" ? {} : { client_request_id: fields.client_request_id ?? randomId() };
  return { ...fields, ...key, task_id: taskId, message };
}

/** Whether the engine recognizes the message if it is sent again. */
export function isIdempotent(body: Execute): boolean {
  return typeof body.client_request_id === "string";
}

/** Begins the turn of a message, or finds the one that the message has begun, and reads none of its events. */
export function beginInBackground(
  api: Api<EnginePaths>,
  body: Execute,
  options: CallOptions = {},
): Promise<BackgroundTurn> {
  const json = { ...body, background: true };
  return api.http.json({
    method: "POST",
    path: "/execute",
    json,
    repeatable: isIdempotent(body),
    ...options,
  });
}
