/** The stories of `stories.md` about files. */

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { after, before, suite, test } from "node:test";
import { Engine, FileNotFoundError, PreconditionFailedError } from "../src/index.js";
import { expectRefusal } from "./support/errors.js";
import { TestFleet } from "./support/fleet.js";
import { CuttingProxy } from "./support/proxy.js";

const MIB = 1024 * 1024;

function digest(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

suite("stories of files", () => {
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

  test("upload_and_download", async () => {
    const bytes = new Uint8Array(randomBytes(MIB));
    const uploaded = await engine.upload("größe 1/世界 #?%.bin", bytes);
    assert.equal(uploaded.size, MIB);
    const names = (await engine.files("größe 1").toArray()).map((entry) => entry.name);
    assert.deepEqual(names, ["世界 #?%.bin"]);
    const download = await engine.download("größe 1/世界 #?%.bin");
    assert.deepEqual([download.size, download.etag], [uploaded.size, uploaded.etag]);
    assert.equal(digest(await download.bytes()), digest(bytes));
    await engine.deleteFile("größe 1", { recursive: true });
    await expectRefusal(engine.download("größe 1/世界 #?%.bin"), FileNotFoundError, "FILE_NOT_FOUND", 404);
  });

  test("upload_resumed", async () => {
    const bytes = new Uint8Array(randomBytes(21 * MIB));
    let sent = 0;
    proxy.onSent = (count) => {
      sent += count;
      if (sent < 5 * MIB) return;
      sent = 0;
      proxy.cutAll();
    };
    // Every second answer is lost, and the first one to the last part: its outcome is not known.
    let answers = 0;
    let lastAnswers = 0;
    proxy.onData = (chunk, cut) => {
      if (chunk.includes('"etag"')) lastAnswers += 1;
      else if (chunk.includes("HTTP/1.1 204")) answers += 1;
      else return chunk;
      if (lastAnswers === 0 ? answers % 2 === 0 : lastAnswers > 1) return chunk;
      cut();
      return chunk.subarray(0, 0);
    };
    const progress: number[] = [];
    const file = await cutting.upload("large.bin", chunks(bytes), {
      onProgress: (stored) => progress.push(stored),
    });
    proxy.onSent = proxy.onData = undefined;
    assert.equal(lastAnswers, 1);
    assert.deepEqual(
      progress,
      progress.toSorted((a, b) => a - b),
    );
    assert.equal(progress.at(-1), bytes.byteLength);
    const stored = await engine.fileInfo("large.bin");
    assert.deepEqual([file.size, file.etag], [bytes.byteLength, stored.etag]);
    assert.equal(digest(await (await engine.download("large.bin")).bytes()), digest(bytes));
  });

  test("download_resumed", async () => {
    const bytes = new Uint8Array(randomBytes(21 * MIB));
    await engine.upload("resumed.bin", bytes);
    let forwarded = 0;
    let cuts = 0;
    proxy.onData = (chunk, cut) => {
      forwarded += chunk.byteLength;
      if (forwarded < 6 * MIB) return chunk;
      forwarded = 0;
      cuts += 1;
      cut();
      return chunk.subarray(0, chunk.byteLength / 2);
    };
    const download = await cutting.download("resumed.bin");
    assert.equal(download.size, bytes.byteLength);
    assert.equal(digest(await download.bytes()), digest(bytes));
    proxy.onData = undefined;
    assert.ok(cuts >= 3, `it was cut ${cuts.toString()} times`);
  });

  test("changed_file_is_not_mixed", async () => {
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
});

async function* chunks(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  for (let start = 0; start < bytes.byteLength; start += 100_000) {
    await Promise.resolve();
    yield bytes.subarray(start, start + 100_000);
  }
}
