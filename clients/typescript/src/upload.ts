/** Uploads in parts, which continue after a lost connection. */

import { NotFoundError, NetworkError, ProtocolError } from "./errors.js";
import { UploadConflictError, UploadNotFoundError } from "./error-codes.js";
import type { Call, Http } from "./http.js";
import { Attempts } from "./retry.js";
import { sleep } from "./time.js";
import type { UploadedFile } from "./types.js";

/** What can be uploaded. Streams are read as they are sent, one part at a time. */
export type UploadBody =
  string | Blob | ArrayBuffer | Uint8Array | AsyncIterable<Uint8Array> | ReadableStream<Uint8Array>;

export interface UploadOptions {
  /** Only if the file has this tag. */
  readonly ifMatch?: string | undefined;
  /** Only if there is no such file. */
  readonly createOnly?: boolean | undefined;
  /** Called with the number of bytes that are stored. */
  readonly onProgress?: ((bytes: number) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
  /** For how long a lost connection is tried again; 2 minutes by default. */
  readonly reconnectMs?: number | undefined;
}

/** The size of a part. What is not larger is sent in one request. */
const PART_BYTES = 8 * 1024 * 1024;
const DEFAULT_RECONNECT_MS = 120_000;

/** Uploads a file. `path` is encoded. */
export async function upload(
  http: Http,
  path: string,
  body: UploadBody,
  options: UploadOptions,
): Promise<UploadedFile> {
  const parts = partsOf(body);
  const head = await nextPart(parts);
  const second = head === undefined ? undefined : await nextPart(parts);
  const conditions: Record<string, string> = {
    ...(options.ifMatch === undefined ? {} : { "if-match": options.ifMatch }),
    ...(options.createOnly === true ? { "if-none-match": "*" } : {}),
  };
  if (head === undefined || second === undefined) {
    const bytes = head ?? new Uint8Array();
    // Without a condition a second upload of the same bytes changes nothing.
    const repeatable = Object.keys(conditions).length === 0;
    const call = {
      method: "PUT",
      path,
      headers: conditions,
      body: blobPart(bytes),
      repeatable,
      signal: options.signal,
    };
    const file = await http.json<UploadedFile>(call);
    options.onProgress?.(bytes.byteLength);
    return file;
  }
  const resumable = new ResumableUpload(http, path, options);
  await resumable.create(conditions);
  try {
    await resumable.send(head);
    for (let part: Uint8Array | undefined = second; part !== undefined; part = await nextPart(parts)) {
      await resumable.send(part);
    }
    return await resumable.complete();
  } catch (error) {
    // Room is scarce: 32 uploads at a time, and their bytes count.
    await resumable.cancel();
    await parts.return();
    throw error;
  }
}

class ResumableUpload {
  readonly #http: Http;
  readonly #path: string;
  readonly #options: UploadOptions;
  #location = "";
  #offset = 0;

  constructor(http: Http, path: string, options: UploadOptions) {
    this.#http = http;
    this.#path = path;
    this.#options = options;
  }

  async create(conditions: Readonly<Record<string, string>>): Promise<void> {
    const headers = { ...conditions, "upload-complete": "?0" };
    const call = { method: "PUT", path: this.#path, headers, signal: this.#options.signal, repeatable: true };
    const { upload_id } = await this.#http.json<{ upload_id: string }>(call);
    this.#location = `/workspace-uploads/${encodeURIComponent(upload_id)}`;
  }

  /** Sends a part; after a lost connection only what the engine does not have. */
  async send(part: Uint8Array): Promise<void> {
    const begin = this.#offset;
    const attempts = new Attempts(this.#options.reconnectMs ?? DEFAULT_RECONNECT_MS);
    while (this.#offset < begin + part.byteLength) {
      const rest = part.subarray(this.#offset - begin);
      try {
        await this.#http.headers(this.#append(rest, "?0"));
        this.#offset += rest.byteLength;
      } catch (error) {
        await this.#pause(attempts, error);
        const stored = await this.#storedBytes();
        if (stored < begin || stored > begin + part.byteLength) {
          throw new ProtocolError(
            `the upload is at byte ${stored.toString()}, outside of the part that was sent`,
          );
        }
        if (stored > this.#offset) attempts.reset();
        this.#offset = stored;
      }
      this.#options.onProgress?.(this.#offset);
    }
  }

  async complete(): Promise<UploadedFile> {
    const attempts = new Attempts(this.#options.reconnectMs ?? DEFAULT_RECONNECT_MS);
    for (;;) {
      try {
        return await this.#http.json<UploadedFile>(this.#append(new Uint8Array(), "?1"));
      } catch (error) {
        await this.#pause(attempts, error);
        const file = await this.#fileIfComplete();
        if (file !== undefined) return file;
      }
    }
  }

  async cancel(): Promise<void> {
    await this.#http.headers({ method: "DELETE", path: this.#location, retryMs: 0 }).catch(() => undefined);
  }

  async #pause(attempts: Attempts, error: unknown): Promise<void> {
    const isLost = error instanceof NetworkError || error instanceof UploadConflictError;
    const failure =
      error instanceof NetworkError
        ? error
        : new NetworkError("the upload lost its connection", { sent: true, cause: error });
    const pause = isLost ? attempts.pauseAfter(failure) : undefined;
    if (pause === undefined) throw error;
    await sleep(pause, this.#options.signal);
  }

  async #storedBytes(): Promise<number> {
    const headers = await this.#http.headers({
      method: "HEAD",
      path: this.#location,
      signal: this.#options.signal,
    });
    const offset = Number(headers.get("upload-offset") ?? Number.NaN);
    if (!Number.isSafeInteger(offset)) throw new ProtocolError("the answer has no `Upload-Offset`");
    return offset;
  }

  /** After a lost final answer: an upload that is gone was completed, which shows at the file. */
  async #fileIfComplete(): Promise<UploadedFile | undefined> {
    try {
      await this.#storedBytes();
      return undefined;
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error;
    }
    const headers = await this.#http.headers({
      method: "HEAD",
      path: this.#path,
      signal: this.#options.signal,
    });
    const size = Number(headers.get("content-length"));
    if (size !== this.#offset)
      throw new UploadNotFoundError("the upload is not there any more", { status: 404 });
    return {
      path: this.#path.slice("/workspace/".length),
      size,
      modified: new Date(headers.get("last-modified") ?? 0).toISOString(),
      etag: headers.get("etag") ?? "",
    };
  }

  #append(bytes: Uint8Array, complete: "?0" | "?1"): Call {
    return {
      method: "PATCH",
      path: this.#location,
      headers: {
        "content-type": "application/partial-upload",
        "upload-offset": this.#offset.toString(),
        "upload-complete": complete,
      },
      body: blobPart(bytes),
      signal: this.#options.signal,
    };
  }
}

async function nextPart(parts: AsyncGenerator<Uint8Array, void>): Promise<Uint8Array | undefined> {
  const next = await parts.next();
  return next.done === true ? undefined : next.value;
}

/** The parts of a body: of equal size, only the last one may be smaller. */
async function* partsOf(body: UploadBody): AsyncGenerator<Uint8Array, void, undefined> {
  if (typeof body === "string") yield* cut(new TextEncoder().encode(body));
  else if (body instanceof Uint8Array) yield* cut(body);
  else if (body instanceof ArrayBuffer) yield* cut(new Uint8Array(body));
  else if (body instanceof Blob) {
    for (let start = 0; start < body.size; start += PART_BYTES) {
      yield new Uint8Array(await body.slice(start, start + PART_BYTES).arrayBuffer());
    }
  } else yield* gather(body instanceof ReadableStream ? chunksOf(body) : body);
}

function* cut(bytes: Uint8Array): Generator<Uint8Array, void, undefined> {
  for (let start = 0; start < bytes.byteLength; start += PART_BYTES)
    yield bytes.subarray(start, start + PART_BYTES);
}

async function* gather(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  let part = new Uint8Array(PART_BYTES);
  let filled = 0;
  for await (const chunk of chunks) {
    let rest = chunk;
    while (rest.byteLength > 0) {
      const taken = rest.subarray(0, PART_BYTES - filled);
      part.set(taken, filled);
      filled += taken.byteLength;
      rest = rest.subarray(taken.byteLength);
      if (filled === PART_BYTES) {
        yield part;
        part = new Uint8Array(PART_BYTES);
        filled = 0;
      }
    }
  }
  if (filled > 0) yield part.subarray(0, filled);
}

/** Not every browser can iterate over a stream. */
async function* chunksOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** The bytes as a body; the types of the language do not admit those over shared memory. */
function blobPart(bytes: Uint8Array): BodyInit {
  return bytes as Uint8Array<ArrayBuffer>;
}
