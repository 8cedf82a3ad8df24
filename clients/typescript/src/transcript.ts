/** What a turn has said so far, without what a repeated step of the model has made void. */

import type { TurnEvent } from "./events.js";

/** A block of text or of reasoning. */
export interface TranscriptBlock {
  /** Its number within the turn; -1 if the engine has announced no block. */
  readonly index: number;
  readonly kind: "text" | "thinking";
  readonly text: string;
  /** The `ts` of its first event. */
  readonly ts: number;
}

/** Collects the text and the reasoning of a turn from its events. */
export class Transcript {
  #blocks: { index: number; kind: "text" | "thinking"; text: string; ts: number; open: boolean }[] = [];

  /** All blocks in their order. */
  get blocks(): readonly TranscriptBlock[] {
    return this.#blocks.map(({ index, kind, text, ts }) => ({ index, kind, text, ts }));
  }

  /** The text so far: all that was sent and still counts. */
  get text(): string {
    return this.#textOf("text");
  }

  /** The reasoning so far. */
  get thinking(): string {
    return this.#textOf("thinking");
  }

  /** Takes the next event. */
  add(event: TurnEvent): void {
    switch (event.type) {
      case "content_block_start":
        if (event.block_type !== "tool_use") this.#open(event.index, event.block_type, event.ts);
        break;
      case "content_block_stop":
        for (const block of this.#blocks) if (block.index === event.index) block.open = false;
        break;
      case "text_delta":
        this.#append("text", event.text, event.ts);
        break;
      case "thinking_delta":
        this.#append("thinking", event.text, event.ts);
        break;
      case "thread_lifecycle":
        if (event.phase === "retrying") this.#void(event.void_after);
        break;
      default:
    }
  }

  #textOf(kind: "text" | "thinking"): string {
    return this.#blocks.map((block) => (block.kind === kind ? block.text : "")).join("");
  }

  #open(index: number, kind: "text" | "thinking", ts: number): void {
    this.#blocks.push({ index, kind, text: "", ts, open: true });
  }

  #append(kind: "text" | "thinking", text: string, ts: number): void {
    if (this.#blocks.findLast((block) => block.open)?.kind !== kind) this.#open(-1, kind, ts);
    const block = this.#blocks.findLast((candidate) => candidate.open);
    if (block !== undefined) block.text += text;
  }

  /** Blocks do not cross steps of the model, so each one counts wholly or not at all. */
  #void(after: number): void {
    this.#blocks = this.#blocks.filter((block) => block.ts <= after);
    for (const block of this.#blocks) block.open = false;
  }
}
