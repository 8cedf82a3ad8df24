// Serves the console from its source folder, so that a change is there after a reload, and passes everything else on to
// an orchestrator. For whoever works on the pages; the tests run on what is in the binary.
//
//   node dev.js http://127.0.0.1:8000 [PORT]

import { createReadStream, existsSync, readFileSync, statSync } from "node:fs";
import http from "node:http";
import path from "node:path";

const orchestrator = new URL(process.argv[2]);
const policy = (await fetch(new URL("/console", orchestrator))).headers.get("content-security-policy");
const port = Number(process.argv[3] ?? 8080);
const pages = new URL("../../crates/pages/", import.meta.url).pathname;
const TYPES = { ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };

http
  .createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    if (pathname === "/console") {
      const index = readFileSync(`${pages}console/index.html`, "utf8").replaceAll("{assets}", "console/dev");
      headers(response, "text/html; charset=utf-8").end(index);
    } else if (pathname === "/console/assets/oauth/callback") {
      const { search } = new URL(request.url, "http://localhost");
      response.writeHead(303, { location: `../../../console#/authorized${search}` }).end();
    } else if (pathname.startsWith("/console/dev/")) {
      asset(path.normalize(pathname.slice("/console/dev/".length)), response);
    } else {
      forward(request, response);
    }
  })
  .listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${port}/console`));

function headers(response, type) {
  response.setHeader("content-type", type);
  response.setHeader("cache-control", "no-store");
  response.setHeader("content-security-policy", policy);
  return response;
}

function asset(name, response) {
  const isVendored = name.startsWith("vendor/");
  const file = isVendored ? `${pages}${name}` : `${pages}console/${name}`;
  if (name.startsWith("..") || !existsSync(file) || !statSync(file).isFile()) return response.writeHead(404).end();
  headers(response, TYPES[path.extname(file)] ?? "application/octet-stream");
  if (!isVendored) return createReadStream(file).pipe(response);
  return response.end(readFileSync(file, "utf8").replaceAll('from"preact"', 'from"./preact.mjs"'));
}

function forward(request, response) {
  const { method, url, headers: sent } = request;
  const { hostname, port: to } = orchestrator;
  const call = http.request({ hostname, port: to, method, path: url, headers: sent }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    response.flushHeaders();
    answer.pipe(response);
    // A stream that breaks is to break here, too.
    answer.on("close", () => answer.complete || response.destroy());
  });
  call.on("error", () => response.destroy());
  response.on("close", () => call.destroy());
  request.pipe(call);
}
