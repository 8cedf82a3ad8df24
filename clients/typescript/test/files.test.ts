/** What else transfers do, beside the stories of `stories.md`. */

import assert from "node:assert/strict";
import { after, before, suite, test } from "node:test";
import { type Engine, FileNotFoundError, PreconditionFailedError, StorageFullError } from "../src/index.js";
import { TestFleet } from "./support/fleet.js";

const MIB = 1024 * 1024;

suite("files", () => {
  let fleet: TestFleet;
  let engine: Engine;

  before(async () => {
    fleet = await TestFleet.start({ ENGINE_WORKSPACE_FILE_MB: "64", ENGINE_WORKSPACE_QUOTA_MB: "100" });
    engine = await fleet.fleet.admit("ada");
  });
  after(async () => {
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

  test("a download begins where it is told to, and ends when nobody wants it any more", async () => {
    const bytes = new Uint8Array(8 * MIB).map((_, index) => index % 251);
    await engine.upload("large.bin", bytes);
    assert.deepEqual(
      await (await engine.download("large.bin", { offset: 7 * MIB })).bytes(),
      bytes.subarray(7 * MIB),
    );
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
