/**
 * What a turn has said and done so far, from its events. Pure: an event and a turn make the next turn.
 *
 * @typedef {{kind: "text" | "thinking", ts: number, text: string, index: number, open: boolean}} Said
 * @typedef {{kind: "tool", ts: number, id: string, tool: string, input: unknown, output?: string, error?: string,
 *   durationMs?: number, hooks: object[], agent?: {name: string, parts: Part[]}}} Tool
 * @typedef {{kind: "request", ts: number, id: string, ask: object, approval?: object, answer?: string,
 *   decision?: object}} Request
 * @typedef {{kind: "plan", ts: number, begun: boolean, agent?: string, skills: string[], steps: string[]}} Plan
 * @typedef {{kind: "note", ts: number, text: string}} Note
 * @typedef {Said | Tool | Request | Plan | Note} Part
 * @typedef {{id: string, state: "running" | "completed" | "failed" | "cancelled", parts: Part[], startedAt?: number,
 *   endedAt?: number, error?: object, usage?: object, citations: object[], stopReason?: string, messageId?: string}} Turn
 */

/** @returns {Turn} */
export function newTurn(id) {
  return { id, state: "running", parts: [], citations: [] };
}

/** @returns {Turn} */
export function applyEvent(turn, type, data) {
  const { ts } = data;
  switch (type) {
    case "thread_lifecycle":
      return lifecycle(turn, data);
    case "error":
      return { ...closed(turn), state: "failed", error: { code: data.code, message: data.message }, endedAt: ts };
    case "usage":
      return { ...turn, usage: data };
    case "citations":
      return { ...turn, citations: data.citations };
    default:
      return { ...turn, parts: applyPart(turn.parts, type, data) };
  }
}

/** Whether anybody is asked something. */
export function openRequest(turn) {
  return turn.state === "running"
    ? turn.parts.find((part) => part.kind === "request" && part.answer === undefined && part.decision === undefined)
    : undefined;
}

function lifecycle(turn, data) {
  const { phase, ts, message_id: messageId } = data;
  switch (phase) {
    case "started":
      return { ...turn, startedAt: ts, messageId };
    case "completed":
      return { ...closed(turn), state: "completed", endedAt: ts, stopReason: data.stop_reason, messageId };
    case "cancelled":
      return { ...closed(turn), state: "cancelled", endedAt: ts, messageId };
    case "resumed":
      return { ...turn, parts: [...turn.parts, note(ts, "The engine was restarted, and continues.")] };
    case "retrying": {
      // What came after that position does not count: the step is repeated.
      const kept = turn.parts.filter((part) => part.ts <= data.void_after);
      return { ...closed({ ...turn, parts: kept }) };
    }
    default:
      return turn;
  }
}

function closed(turn) {
  return { ...turn, parts: turn.parts.map((part) => (part.open ? { ...part, open: false } : part)) };
}

function note(ts, text) {
  return { kind: "note", ts, text };
}

/** @returns {Part[]} */
function applyPart(parts, type, data) {
  const { ts } = data;
  switch (type) {
    case "content_block_start":
      if (data.block_type === "tool_use") return parts;
      return [...parts, { kind: data.block_type, ts, text: "", index: data.index, open: true }];
    case "content_block_stop":
      return parts.map((part) => (part.open && part.index === data.index ? { ...part, open: false } : part));
    case "text_delta":
      return append(parts, "text", data);
    case "thinking_delta":
      return append(parts, "thinking", data);
    case "tool_call":
      return [...parts, { kind: "tool", ts, id: data.tool_call_id, tool: data.tool, input: data.input, hooks: [] }];
    case "tool_result":
      return ofTool(parts, data.tool_call_id, () => ({
        output: data.output,
        error: data.error,
        durationMs: data.duration_ms,
      }));
    case "tool_hook":
      return ofTool(parts, data.tool_call_id, (tool) => ({ hooks: [...tool.hooks, data] }));
    case "agent_event":
      return ofTool(parts, data.tool_call_id, (tool) => ({
        agent: { name: data.agent, parts: applyPart(tool.agent?.parts ?? [], data.event, { ts, ...data.data }) },
      }));
    case "approval_request":
      return withRequest(parts, data.request_id, ts, { approval: data });
    case "hitl_request":
      return withRequest(parts, data.request_id, ts, { ask: data });
    case "hitl_resolved":
      return withRequest(parts, data.request_id, ts, { answer: data.answer });
    case "approval_resolved":
      return withRequest(parts, data.request_id, ts, { decision: data });
    case "working_memory_update":
      return withPlan(parts, planOf(data)) ?? [...parts, note(ts, memoryNote(data))];
    case "compaction_event":
      return [...parts, note(ts, `${data.messages_collapsed} earlier messages were summarised.`)];
    case "usage_cap":
      return [...parts, note(ts, "Much of a cap on usage is used.")];
    default:
      return parts;
  }
}

function append(parts, kind, { ts, text }) {
  const at = parts.findLastIndex((part) => part.open && part.kind === kind);
  if (at < 0) return [...parts, { kind, ts, text, index: -1, open: true }];
  return parts.with(at, { ...parts[at], text: parts[at].text + text });
}

function ofTool(parts, id, fields) {
  return parts.map((part) => (part.kind === "tool" && part.id === id ? { ...part, ...fields(part) } : part));
}

function withRequest(parts, id, ts, fields) {
  const at = parts.findIndex((part) => part.kind === "request" && part.id === id);
  if (at < 0) return [...parts, { kind: "request", ts, id, ask: {}, ...fields }];
  return parts.with(at, { ...parts[at], ...fields });
}

/** The plan of the turn, which the engine keeps in working memory, or as much of it as is made; undefined if this is something else. */
function planOf({ ts, key, value }) {
  if (!["plan", "planning"].includes(key) || !Array.isArray(value?.steps)) return undefined;
  const [skills, begun] = [Array.isArray(value.skills) ? value.skills : [], key === "planning"];
  return { kind: "plan", ts, begun, agent: value.agent ?? undefined, skills: skills.map(String), steps: value.steps.map(String) };
}

/** With a plan, which takes the place of what was made of it before; undefined if there is none. */
function withPlan(parts, plan) {
  return plan && [...parts.filter((part) => part.kind !== "plan" || !part.begun), plan];
}

/**
 * What is said of a change of working memory. What was recalled for the message is long, and background: its number says enough.
 *
 * @param {{ key: string, value: unknown }} update
 */
function memoryNote({ key, value }) {
  if (key === "recalled" && Array.isArray(value)) {
    return value.length === 1 ? "1 memory was recalled." : `${value.length} memories were recalled.`;
  }
  return `Working memory: ${key} = ${JSON.stringify(value)}`;
}
