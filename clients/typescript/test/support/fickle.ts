/** A model that says something else when it is asked again. */

import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";

/** Speaks the protocol of chat completions: breaks off after `eins zwei drei`, and then says `uno dos`. */
export class FickleModel {
  readonly #server: Server;
  #answers = 0;

  private constructor() {
    this.#server = createServer((request, response) => {
      request.resume();
      this.#answers += 1;
      const isFirst = this.#answers === 1;
      response.writeHead(200, { "content-type": "text/event-stream" });
      const send = (delta: object, reason: string | null): void => {
        const choices = [{ index: 0, delta, finish_reason: reason }];
        const chunk = { id: "c", object: "chat.completion.chunk", created: 1, model: "m", choices };
        response.write(`data: ${JSON.stringify(chunk)}\n\n`);
      };
      for (const content of isFirst ? ["eins ", "zwei ", "drei "] : ["uno ", "dos"]) {
        send({ role: "assistant", content }, null);
      }
      if (!isFirst) {
        send({}, "stop");
        response.write("data: [DONE]\n\n");
      }
      response.end();
    });
  }

  static async start(): Promise<FickleModel> {
    const model = new FickleModel();
    model.#server.listen(0, "127.0.0.1");
    await once(model.#server, "listening");
    return model;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port.toString()}/v1`;
  }

  async end(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
