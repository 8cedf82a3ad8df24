/** The events of a turn, as a union that `type` narrows. */

import { ProtocolError } from "./errors.js";
import { asRecord } from "./http.js";
import type { SseMessage } from "./sse.js";
import type { EngineSchemas } from "./types.js";

/** What every event has. */
export interface EventStamp {
  readonly task_id: string;
  readonly turn_id: string;
  /** Unix milliseconds, strictly increasing within the task: the position in its stream. */
  readonly ts: number;
}

type Wire = EngineSchemas["TurnEvent"];
/** The data of an event under its type: a message of the stream as one object. */
type EventOf<Type extends Wire["event"]> = { readonly type: Type } & Readonly<
  Extract<Wire, { event: Type }>["data"]
>;

/** The start, the end or a change of phase of a turn; `phase` narrows it further. */
export type ThreadLifecycleEvent = EventOf<"thread_lifecycle">;
/** The turn failed; nothing follows. */
export type ErrorEvent = EventOf<"error">;
/** A chunk of output text. */
export type TextDeltaEvent = EventOf<"text_delta">;
/** A chunk of the model's reasoning. */
export type ThinkingDeltaEvent = EventOf<"thinking_delta">;
/** A content block begins. */
export type ContentBlockStartEvent = EventOf<"content_block_start">;
/** A content block ends. */
export type ContentBlockStopEvent = EventOf<"content_block_stop">;
/** The model calls a tool. */
export type ToolCallEvent = EventOf<"tool_call">;
/** A tool finished. */
export type ToolResultEvent = EventOf<"tool_result">;
/** A hook of the catalog acted on a tool call. */
export type ToolHookEvent = EventOf<"tool_hook">;
/** The agent waits for a person's answer. */
export type HitlRequestEvent = EventOf<"hitl_request">;
/** A person answered. */
export type HitlResolvedEvent = EventOf<"hitl_resolved">;
/** A tool call waits for a person's decision; a `hitl_request` with the same `request_id` follows. */
export type ApprovalRequestEvent = EventOf<"approval_request">;
/** A person has decided about a tool call. */
export type ApprovalResolvedEvent = EventOf<"approval_resolved">;
/** The agent wrote to working memory. */
export type WorkingMemoryUpdateEvent = EventOf<"working_memory_update">;
/** Earlier turns were replaced by a summary. */
export type CompactionEvent = EventOf<"compaction_event">;
/** Tokens that the turn has used so far. */
export type UsageEvent = EventOf<"usage">;
/** Much of a cap on usage, or all of it, is used. */
export type UsageCapEvent = EventOf<"usage_cap">;
/** The pages that the turn's answer names. */
export type CitationsEvent = EventOf<"citations">;
/** An event of a sub-agent of the turn. */
export type AgentEvent = EventOf<"agent_event">;
/** What became of a message to a busy task. */
export type BusyUpdateEvent = EventOf<"busy_update">;

/** An event, a phase or a status that this version of the package does not know. */
export interface UnknownEvent extends EventStamp {
  readonly type: "unknown";
  /** The type that was sent. */
  readonly event: string;
  /** The data as they were sent. */
  readonly data: Readonly<Record<string, unknown>>;
}

/** An event that this version of the package knows. */
export type KnownEvent =
  | ThreadLifecycleEvent
  | ErrorEvent
  | TextDeltaEvent
  | ThinkingDeltaEvent
  | ContentBlockStartEvent
  | ContentBlockStopEvent
  | ToolCallEvent
  | ToolResultEvent
  | ToolHookEvent
  | HitlRequestEvent
  | HitlResolvedEvent
  | ApprovalRequestEvent
  | ApprovalResolvedEvent
  | WorkingMemoryUpdateEvent
  | CompactionEvent
  | UsageEvent
  | UsageCapEvent
  | CitationsEvent
  | AgentEvent
  | BusyUpdateEvent;

/** An event of a turn. */
export type TurnEvent = KnownEvent | UnknownEvent;

type Variants<Type extends KnownEvent["type"], Field extends string> =
  Extract<KnownEvent, { type: Type }> extends infer Event
    ? Event extends Record<Field, infer Value extends string>
      ? Value
      : never
    : never;

/** What tells the variants of an event apart. One that is not named here is an `UnknownEvent`. */
const PHASES: Record<Variants<"thread_lifecycle", "phase">, true> = {
  started: true,
  completed: true,
  errored: true,
  resumed: true,
  retrying: true,
  cancelled: true,
};
const BUSY_STATUSES: Record<Variants<"busy_update", "status">, true> = {
  queued: true,
  steered: true,
  cancelled: true,
  failed: true,
};

/**
 * The known types: all of the document. A type that has variants names the field that tells them apart.
 */
const KNOWN: Record<Exclude<Wire["event"], "heartbeat">, true | { field: string; variants: object }> = {
  thread_lifecycle: { field: "phase", variants: PHASES },
  error: true,
  text_delta: true,
  thinking_delta: true,
  content_block_start: true,
  content_block_stop: true,
  tool_call: true,
  tool_result: true,
  tool_hook: true,
  hitl_request: true,
  hitl_resolved: true,
  approval_request: true,
  approval_resolved: true,
  working_memory_update: true,
  compaction_event: true,
  usage: true,
  usage_cap: true,
  citations: true,
  agent_event: true,
  busy_update: { field: "status", variants: BUSY_STATUSES },
};

/** The event of a message; undefined for a heartbeat, which only says that the connection is alive. */
export function parseEvent(message: SseMessage): TurnEvent | undefined {
  if (message.event === "heartbeat") return undefined;
  const data = parseData(message);
  const known = Object.hasOwn(KNOWN, message.event) ? KNOWN[message.event as KnownEvent["type"]] : undefined;
  if (known === undefined || !hasKnownVariant(known, data)) {
    const { task_id, turn_id, ts } = data;
    return { type: "unknown", event: message.event, task_id, turn_id, ts, data };
  }
  return { ...data, type: message.event } as TurnEvent;
}

function parseData(message: SseMessage): EventStamp & Record<string, unknown> {
  let data: unknown;
  try {
    data = JSON.parse(message.data);
  } catch (cause) {
    throw new ProtocolError(`the data of a \`${message.event}\` event is not JSON`, { cause });
  }
  const record = asRecord(data);
  if (record === undefined || typeof record["turn_id"] !== "string" || typeof record["ts"] !== "number") {
    throw new ProtocolError(`the data of a \`${message.event}\` event has no \`turn_id\` or \`ts\``);
  }
  return record as unknown as EventStamp & Record<string, unknown>;
}

function hasKnownVariant(known: true | { field: string; variants: object }, data: object): boolean {
  if (known === true) return true;
  const variant: unknown = (data as Record<string, unknown>)[known.field];
  return typeof variant === "string" && Object.hasOwn(known.variants, variant);
}
