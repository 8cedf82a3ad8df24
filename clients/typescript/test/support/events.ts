/** Events of turns, and where a network cuts their streams. */

import type { Engine, Turn, TurnEvent } from "../../src/index.js";
import type { CuttingProxy } from "./proxy.js";

export async function collect(turn: AsyncIterable<TurnEvent>): Promise<TurnEvent[]> {
  const events: TurnEvent[] = [];
  for await (const event of turn) events.push(event);
  return events;
}

/** The first events, up to one of this type. */
export async function readUntil(
  turn: AsyncIterable<TurnEvent>,
  type: TurnEvent["type"],
): Promise<TurnEvent[]> {
  const events: TurnEvent[] = [];
  for await (const event of turn) {
    events.push(event);
    if (event.type === type) break;
  }
  return events;
}

/** The events that the engine has of a turn. */
export function stored(engine: Engine, turn: Turn): Promise<TurnEvent[]> {
  return collect(engine.follow(turn.taskId, turn.turnId ?? ""));
}

/** Cuts the first connection that streams events: after `count` of them and `more` bytes of the next one. */
export function cutOnceAfter(proxy: CuttingProxy, count: number, more: number): void {
  let seen = 0;
  let isDone = false;
  proxy.onData = (chunk, cut) => {
    if (isDone) return chunk;
    let end = seen === count ? headEnd(chunk) : 0;
    for (let at = chunk.indexOf("\n\n"); at >= 0 && seen < count; at = chunk.indexOf("\n\n", at + 2)) {
      seen += 1;
      end = at + 2;
    }
    if (seen < count || end === 0) return chunk;
    isDone = true;
    cut();
    return chunk.subarray(0, end + more);
  };
}

/** Where a response's head ends; 0 if this is the middle of one. */
function headEnd(chunk: Buffer): number {
  return chunk.subarray(0, 5).toString("latin1") === "HTTP/" ? chunk.indexOf("\r\n\r\n") + 4 : 0;
}

/** Cuts each connection after one event; other answers pass. */
export function cutAfterEachEvent(chunk: Buffer, cut: () => void): Buffer {
  const isStream = chunk.includes("text/event-stream") || chunk.includes("\nevent: ");
  const end = isStream ? chunk.indexOf("\n\n") : -1;
  if (end < 0) return chunk;
  cut();
  return chunk.subarray(0, end + 2);
}
