/** The parser of event streams takes a stream in any pieces. */

import assert from "node:assert/strict";
import { suite, test } from "node:test";
import fc from "fast-check";
import { NetworkError, ProtocolError, type SseMessage, SseParser } from "../src/index.js";
import { readSse } from "../src/sse.js";

const field = fc.string({ unit: "grapheme" }).map((text) => text.replace(/[\r\n\0]/g, "·"));
const name = field.map((text) => text.replaceAll(":", ";"));

const message: fc.Arbitrary<SseMessage> = fc
  .record({ event: name, data: fc.array(field, { minLength: 1, maxLength: 4 }), id: fc.option(field) })
  .map(({ event, data, id }) => ({
    event: event === "" ? "message" : event,
    data: data.join("\n"),
    ...(id === null ? {} : { id }),
  }));

const lineEnd = fc.constantFrom("\n", "\r\n", "\r");
const noise = fc.constantFrom("", ": a comment", "retry: 10", "unknown: field", "event");

/** A message as lines, with what a client has to ignore. */
function serialize({ event, data, id }: SseMessage, end: string, before: string): string {
  const lines = [before, `event: ${event}`, ...data.split("\n").map((line) => `data: ${line}`)];
  if (id !== undefined) lines.push(`id: ${id}`);
  return (
    lines
      .filter((line) => line !== "")
      .map((line) => line + end)
      .join("") + end
  );
}

const stream = fc.array(fc.tuple(message, lineEnd, noise), { maxLength: 6 }).map((parts) => ({
  messages: parts.map(([sent]) => sent),
  text: parts.map(([sent, end, before]) => serialize(sent, end, before)).join(""),
}));

function response(chunks: readonly Uint8Array[], failure?: Error): Response {
  let next = 0;
  return new Response(
    new ReadableStream<Uint8Array>({
      pull: (controller) => {
        const chunk = chunks[next++];
        if (chunk !== undefined) controller.enqueue(chunk);
        else if (failure === undefined) controller.close();
        else controller.error(failure);
      },
    }),
  );
}

async function read(from: Response, idleMs = 60_000): Promise<SseMessage[]> {
  const messages: SseMessage[] = [];
  for await (const part of readSse(from, idleMs, new AbortController().signal)) messages.push(...part);
  return messages;
}

suite("event streams", () => {
  test("a stream means the same in every chunking of its bytes, also within characters and line ends", async () => {
    await fc.assert(
      fc.asyncProperty(
        stream,
        fc.array(fc.integer({ min: 1, max: 9 })),
        async ({ messages, text }, sizes) => {
          const bytes = new TextEncoder().encode(text);
          const chunks: Uint8Array[] = [];
          for (let at = 0, index = 0; at < bytes.length; index += 1) {
            const end = at + (sizes[index % Math.max(1, sizes.length)] ?? bytes.length);
            chunks.push(bytes.subarray(at, end));
            at = end;
          }
          assert.deepEqual(await read(response(chunks)), messages);
        },
      ),
      { numRuns: 500 },
    );
  });

  test("each cut in two, of a stream with everything in it", () => {
    const text =
      "\uFEFFid: 1\r\nevent: é🐝\r\ndata: a\r\n\r\n:c\rdata\rdata:  b\r\rdata: c\n\nid: x\0\ndata: d\n\nda";
    const expected = [
      { event: "é🐝", data: "a", id: "1" },
      { event: "message", data: "\n b" },
      { event: "message", data: "c" },
      { event: "message", data: "d" },
    ];
    for (let cut = 0; cut <= text.length; cut += 1) {
      const parser = new SseParser();
      const messages = [...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))];
      assert.deepEqual(messages, expected, `cut at ${cut.toString()}`);
    }
  });

  test("any text is parsed without a failure, the same in one piece and in many", () => {
    fc.assert(
      fc.property(
        fc.array(fc.constantFrom("\r", "\n", ":", " ", "data", "id", "event", "x", "\uFEFF", "\0")),
        (pieces) => {
          const [whole, cut] = [new SseParser(), new SseParser()];
          assert.deepEqual(
            pieces.flatMap((piece) => cut.push(piece)),
            whole.push(pieces.join("")),
          );
        },
      ),
    );
  });

  test("a connection that breaks or is silent is a NetworkError", async () => {
    const begin = new TextEncoder().encode("data: a\n\ndata: b");
    await assert.rejects(read(response([begin], new Error("reset"))), NetworkError);
    const silent = new Response(new ReadableStream<Uint8Array>());
    await assert.rejects(read(silent, 20), NetworkError);
    await assert.rejects(read(new Response(null)), ProtocolError);
    assert.deepEqual(
      await read(response([begin])),
      [{ event: "message", data: "a" }],
      "what is cut off is dropped",
    );
  });
});
