/** A product's site: a page and the built package; and the user's engine below `/engine`, if the site has its key. */

import { once } from "node:events";
import { readFileSync } from "node:fs";
import {
  createServer,
  type IncomingMessage,
  request as sendRequest,
  type Server,
  type ServerResponse,
} from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";

const PACKAGE = fileURLToPath(new URL("../../../dist/", import.meta.url));
const PAGE = "<!doctype html><html lang=en><title>A product</title><h1>A product</h1></html>";

interface EngineAccess {
  readonly url: string;
  readonly key: string;
}

export class Site {
  readonly #server: Server;
  /** After how many events each stream is cut. */
  cutAfter = Infinity;
  cuts = 0;

  private constructor(engine: EngineAccess | undefined) {
    this.#server = createServer((request, response) => {
      const path = request.url ?? "/";
      if (engine !== undefined && path.startsWith("/engine/")) {
        this.#forward(engine, path.slice("/engine".length), request, response);
      } else if (/^\/client\/[\w/-]+\.js$/.test(path)) {
        response.setHeader("content-type", "text/javascript");
        response.end(readFileSync(PACKAGE + path.slice("/client/".length)));
      } else {
        response.statusCode = path === "/" ? 200 : 404;
        response.setHeader("content-type", "text/html; charset=utf-8");
        response.end(PAGE);
      }
    });
  }

  static async start(engine?: EngineAccess): Promise<Site> {
    const site = new Site(engine);
    site.#server.listen(0, "127.0.0.1");
    await once(site.#server, "listening");
    return site;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port.toString()}`;
  }

  async end(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #forward(engine: EngineAccess, path: string, request: IncomingMessage, response: ServerResponse): void {
    const { hostname, port } = new URL(engine.url);
    const headers = { ...request.headers, host: `${hostname}:${port}`, "x-engine-key": engine.key };
    const outgoing = sendRequest({ hostname, port, path, method: request.method, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers);
      const isStream = answer.headers["content-type"]?.startsWith("text/event-stream") === true;
      let events = 0;
      answer.on("data", (chunk: Buffer) => {
        let end = chunk.byteLength;
        for (let at = chunk.indexOf("\n\n"); isStream && at >= 0; at = chunk.indexOf("\n\n", at + 2)) {
          events += 1;
          if (events === this.cutAfter) end = at + 2;
        }
        response.write(chunk.subarray(0, end), () => {
          if (isStream && events >= this.cutAfter) response.destroy();
        });
        if (isStream && events >= this.cutAfter) {
          this.cuts += 1;
          answer.removeAllListeners("data");
          outgoing.destroy();
        }
      });
      answer.once("end", () => response.end());
    });
    outgoing.once("error", () => response.destroy());
    response.once("close", () => outgoing.destroy());
    request.pipe(outgoing);
  }
}
