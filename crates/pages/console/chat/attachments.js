/** Files that go with a message, and those that are in one. */

import { html, useEffect, useState } from "../lib/html.js";
import { engine, path } from "../lib/api.js";
import { bytes, plain } from "../lib/format.js";

/** What a message may carry here, in all. */
const MAX_BYTES = 20 * 1024 * 1024;
/** Pictures that are shown: none of these can hold a script. */
const SHOWN = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/**
 * Reads files as blocks of a message.
 * @param {File[]} files
 * @param {{size: number}[]} others those that are there already
 */
export async function readFiles(files, others) {
  const size = [...files, ...others].reduce((sum, file) => sum + file.size, 0);
  if (size > MAX_BYTES) throw new Error(`A message carries at most ${bytes(MAX_BYTES)} here.`);
  return Promise.all([...files].map(readFile));
}

async function readFile(file) {
  const mediaType = file.type.split(";")[0] || "text/plain";
  const data = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
  const type = { image: "image", audio: "audio" }[mediaType.split("/")[0]] ?? "document";
  return { size: file.size, block: { type, media_type: mediaType, name: file.name, data } };
}

/** A file that is to be sent. */
export function Chip({ file, remove }) {
  const { name } = file.block;
  return html`<span class="chip"><span class="chip-name"><bdi>${plain(name)}</bdi> <span class="quiet">${bytes(file.size)}</span></span>
    <button type="button" class="plain" aria-label=${`Remove ${plain(name)}`} onClick=${remove}>×</button></span>`;
}

/** A file of a message: a picture is shown, and each can be downloaded. */
export function Attachment({ block, user, task }) {
  const { hash, media_type: mediaType } = block;
  const isShown = SHOWN.has(mediaType);
  const name = plain(block.name ?? mediaType);
  const [state, setState] = useState({});
  const fetchBlob = async (signal) => {
    const response = await engine(user).request("GET", path`/tasks/${task}/media/${hash}`, { signal });
    // Its type is not left to whoever has sent it: a browser shows what it is told to.
    return new Blob([await response.arrayBuffer()], { type: isShown ? mediaType : "application/octet-stream" });
  };
  useEffect(() => {
    if (!isShown) return undefined;
    const abort = new AbortController();
    let url;
    fetchBlob(abort.signal).then(
      (blob) => {
        if (abort.signal.aborted) return;
        url = URL.createObjectURL(blob);
        setState({ url });
      },
      () => abort.signal.aborted || setState({ failed: true }),
    );
    return () => {
      abort.abort();
      URL.revokeObjectURL(url);
    };
  }, [hash]);
  const download = async () => {
    try {
      const url = URL.createObjectURL(await fetchBlob());
      const link = document.createElement("a");
      Object.assign(link, { href: url, download: block.name ?? hash });
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    } catch {
      setState({ failed: true });
    }
  };
  return html`<span class="attachment">
    ${state.url !== undefined && html`<img src=${state.url} alt=${name} />`}
    <button type="button" class="small" aria-label=${`Download ${name}`} onClick=${download}><bdi>${name}</bdi> ↓</button>
    ${state.failed && html`<span class="bad small" role="status">It cannot be read.</span>`}
  </span>`;
}
