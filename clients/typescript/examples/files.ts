import { FileNotFoundError, Fleet } from "roundhouse-client";

const fleet = new Fleet({
  url: process.env["ROUNDHOUSE_URL"] ?? "http://127.0.0.1:8000",
  productKey: process.env["ROUNDHOUSE_PRODUCT_KEY"] ?? "",
});
const engine = await fleet.admit("ada");

await engine.upload("letters/année.txt", new Blob(["Chère Ada, …"]), {
  onProgress: (bytes) => {
    console.log(`${String(bytes)} bytes are stored`);
  },
});
for await (const entry of engine.files("letters")) console.log(entry.name, entry.size);

const download = await engine.download("letters/année.txt");
for await (const chunk of download)
  console.log(`${String(chunk.byteLength)} of ${String(download.size)} bytes`);

try {
  await engine.download("letters/lost.txt");
} catch (error) {
  if (!(error instanceof FileNotFoundError)) throw error;
  console.log(error.code, error.status);
}
