/** The files of the user's workspace. */

import { type Api, type CallOptions, encodeSegment } from "../api.js";
import { Download, type DownloadOptions } from "../download.js";
import { byCursor, type Pages } from "../pages.js";
import type { EnginePaths, EngineSchemas, FileEntry, UploadedFile } from "../types.js";
import type { ListOptions } from "./tasks.js";
import { upload, type UploadBody, type UploadOptions } from "../upload.js";

/** What `HEAD` tells about a file. */
export interface FileInfo {
  readonly size: number;
  readonly etag: string | undefined;
  readonly contentType: string | undefined;
  readonly modified: Date | undefined;
}

/**
 * Files of the workspace. Paths are plain, such as `notes/año 1.txt`; each name is encoded here. `path` of an entry
 * is encoded already: names that are not UTF-8 have no plain form. `{ encoded: … }` takes it as it is.
 */
export class Files {
  readonly #api: Api<EnginePaths>;

  constructor(api: Api<EnginePaths>) {
    this.#api = api;
  }

  /** Uploads a file in place of the one that is there. More than 8 MiB go in parts, which survive a lost connection. */
  upload(path: FilePath, body: UploadBody, options: UploadOptions = {}): Promise<UploadedFile> {
    return upload(this.#api.http, workspacePath(path), body, options);
  }

  /** Begins to download a file. */
  download(path: FilePath, options: DownloadOptions = {}): Promise<Download> {
    return Download.open(this.#api.http, workspacePath(path), undefined, options);
  }

  /** Begins to download a folder as a ZIP archive. */
  archive(folder: FilePath, options: CallOptions): Promise<Download> {
    return Download.open(this.#api.http, workspacePath(folder), { format: "zip" }, options);
  }

  /** The entries of a folder. */
  list(folder: FilePath, options: ListOptions): Pages<FileEntry> {
    const { pageSize, ...rest } = options;
    return byCursor(async (after?: string) => {
      const call = { method: "GET", path: workspacePath(folder), query: { limit: pageSize, after }, ...rest };
      const { entries, next } = await this.#api.http.json<EngineSchemas["FolderListing"]>(call);
      return { items: entries, next };
    });
  }

  /** Looks at a file without its content. */
  async stat(path: FilePath, options: CallOptions = {}): Promise<FileInfo> {
    const headers = await this.#api.http.headers({ method: "HEAD", path: workspacePath(path), ...options });
    const modified = headers.get("last-modified");
    return {
      size: Number(headers.get("content-length") ?? 0),
      etag: headers.get("etag") ?? undefined,
      contentType: headers.get("content-type") ?? undefined,
      modified: modified === null ? undefined : new Date(modified),
    };
  }

  /** Deletes a file or an empty folder; with `recursive` any folder. */
  async delete(path: FilePath, options: { readonly recursive?: boolean } & CallOptions = {}): Promise<void> {
    const { recursive, ...rest } = options;
    const query = { recursive };
    await this.#api.http.headers({ method: "DELETE", path: workspacePath(path), query, ...rest });
  }
}

/** A path in the workspace: plain, or as an entry of a listing has it. */
export type FilePath = string | { readonly encoded: string };

function workspacePath(path: FilePath): string {
  const encoded = typeof path === "string" ? path.split("/").map(encodeSegment).join("/") : path.encoded;
  return encoded === "" ? "/workspace" : `/workspace/${encoded}`;
}
