/** Uploads and downloads, also over connections that are cut. */

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { after, before, suite, test } from "node:test";
import { Engine, FileNotFoundError, PreconditionFailedError, StorageFullError } from "../src/index.js";
import { TestFleet } from "./support/fleet.js";
import { CuttingProxy } from "./support/proxy.js";

const MIB = 1024 * 1024;

function digest(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

suite("files", () => {
  let fleet: TestFleet;
  let engine: Engine;
  let proxy: CuttingProxy;
  let cutting: Engine;

  before(async () => {
    fleet = await TestFleet.start({ ENGINE_WORKSPACE_FILE_MB: "64", ENGINE_WORKSPACE_QUOTA_MB: "128" });
    engine = await fleet.fleet.admit("ada");
    proxy = await CuttingProxy.to(engine.url);
    cutting = new Engine({ url: proxy.url, key: (await fleet.fleet.engineRecord("ada")).api_key });
  });
  after(async () => {
    await CuttingProxy.closeAll();
    await fleet.end();
  });

  test("bodies of every kind are stored as they are", async () => {
    const bytes = new TextEncoder().encode("Zażółć gęślą jaźń 🐝");
    const bodies = {
      "text.txt": "Zażółć gęślą jaźń 🐝",
      "bytes.bin": bytes,
      "buffer.bin": bytes.buffer,
      "blob.bin": new Blob([bytes]),
      "stream.bin": new Blob([bytes]).stream(),
      "çalışma dizini/empty file%.txt": "",
    };
    for (const [path, body] of Object.entries(bodies)) {
      const file = await engine.upload(path, body);
      const download = await engine.download({ encoded: file.path });
      assert.deepEqual(await download.bytes(), path.includes("empty") ? new Uint8Array() : bytes, path);
      assert.equal(download.etag, file.etag);
    }
    const names = (await engine.files("çalışma dizini").toArray()).map((entry) => entry.name);
    assert.deepEqual(names, ["empty file%.txt"]);
    assert.equal((await engine.files("", { pageSize: 2 }).toArray()).length, 6);
    const archive = await (await engine.downloadArchive("çalışma dizini")).bytes();
    assert.deepEqual([...archive.subarray(0, 2)], [0x50, 0x4b], "it is a ZIP");
  });

  test("a large upload and its download survive cut connections", async () => {
    const bytes = new Uint8Array(randomBytes(21 * MIB));
    let forwarded = 0;
    let cuts = 0;
    const progress: number[] = [];
    const timer = setInterval(() => {
      cuts += 1;
      proxy.cutAll();
      if (cuts === 5) clearInterval(timer);
    }, 100);
    const file = await cutting
      .upload("large.bin", chunks(bytes), { onProgress: (stored) => progress.push(stored) })
      .finally(() => {
        clearInterval(timer);
      });
    assert.equal(file.size, bytes.byteLength);
    assert.deepEqual(
      progress,
      progress.toSorted((a, b) => a - b),
    );
    assert.equal(progress.at(-1), bytes.byteLength);
    proxy.onData = (chunk, cut) => {
      forwarded += chunk.byteLength;
      if (forwarded < 6 * MIB) return chunk;
      forwarded = 0;
      cuts += 1;
      cut();
      return chunk.subarray(0, chunk.byteLength / 2);
    };
    const download = await cutting.download("large.bin");
    assert.equal(download.size, bytes.byteLength);
    assert.equal(digest(await download.bytes()), digest(bytes));
    assert.ok(cuts >= 3, `it was cut ${cuts.toString()} times`);
    proxy.onData = undefined;
    assert.deepEqual(
      await (await engine.download("large.bin", { offset: 20 * MIB })).bytes(),
      bytes.subarray(20 * MIB),
    );
  });

  test("a file that changes while it is read is not mixed", async () => {
    await engine.upload("changing.bin", new Uint8Array(8 * MIB).fill(1));
    let forwarded = 0;
    proxy.onData = (chunk, cut) => {
      forwarded += chunk.byteLength;
      if (forwarded > 2 * MIB) cut();
      return chunk;
    };
    const download = await cutting.download("changing.bin");
    await assert.rejects(async () => {
      for await (const _chunk of download) {
        if (proxy.onData === undefined || forwarded <= 2 * MIB) continue;
        await engine.upload("changing.bin", new Uint8Array(MIB).fill(2));
        proxy.onData = undefined;
      }
    }, PreconditionFailedError);
  });

  test("conditions hold, and what is missing or too much is an error of its class", async () => {
    const { etag } = await engine.upload("once.txt", "one", { createOnly: true });
    await assert.rejects(engine.upload("once.txt", "two", { createOnly: true }), PreconditionFailedError);
    await engine.upload("once.txt", "two", { ifMatch: etag });
    await assert.rejects(engine.upload("once.txt", "three", { ifMatch: etag }), PreconditionFailedError);
    await assert.rejects(engine.download("once.txt", { etag }), PreconditionFailedError);
    assert.equal((await engine.fileInfo("once.txt")).size, 3);
    await engine.deleteFile("once.txt");
    await assert.rejects(engine.download("once.txt"), FileNotFoundError);
    await assert.rejects(engine.fileInfo("once.txt"), { status: 404 });
    await assert.rejects(async () => engine.upload("../outside", "x"), TypeError);
    const fill = (path: string): Promise<unknown> => engine.upload(path, new Uint8Array(60 * MIB));
    await fill("full-1.bin");
    await assert.rejects(fill("full-2.bin"), StorageFullError);
    await engine.deleteFile("full-1.bin");
  });

  test("a download that nobody wants any more ends", async () => {
    const abort = new AbortController();
    const download = await engine.download("large.bin", { signal: abort.signal });
    await assert.rejects(
      async () => {
        for await (const _chunk of download) abort.abort(new Error("enough"));
      },
      { message: "enough" },
    );
    const stream = (await engine.download("large.bin")).stream();
    const reader = stream.getReader();
    assert.equal((await reader.read()).done, false);
    await reader.cancel();
  });

  test("what is attached to a message is found and fetched", async () => {
    const data = Buffer.from("plain words").toString("base64");
    await engine
      .run("media", "echo look", {
        media: [{ type: "document", media_type: "text/plain", data, name: "a.txt" }],
      })
      .text();
    const [file] = await engine.tasks.media("media");
    assert.ok(file !== undefined);
    assert.equal(file.name, "a.txt");
    assert.equal(await (await engine.tasks.downloadMedia("media", file.hash)).text(), "plain words");
  });
});

async function* chunks(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  for (let start = 0; start < bytes.byteLength; start += 100_000) {
    await Promise.resolve();
    yield bytes.subarray(start, start + 100_000);
  }
}
