/** A TCP proxy that cuts connections: a client that is connected to it sees a network that fails. */

import { once } from "node:events";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";

export class CuttingProxy {
  static readonly #open = new Set<CuttingProxy>();
  readonly #server = createServer((client) => {
    this.#forward(client);
  });
  readonly #target: { host: string; port: number };
  readonly #sockets = new Set<Socket>();
  /** The clients that get nothing more. */
  readonly #cut = new WeakSet<Socket>();
  /** Called with what the service sends; `cut` ends both sides after the part that is returned. */
  onData: ((chunk: Buffer, cut: () => void) => Buffer) | undefined;
  /** Called with the number of bytes that a client has sent. */
  onSent: ((bytes: number) => void) | undefined;
  connections = 0;

  private constructor(url: string) {
    const { hostname, port } = new URL(url);
    this.#target = { host: hostname, port: Number(port) };
  }

  static async to(url: string): Promise<CuttingProxy> {
    const proxy = new CuttingProxy(url);
    CuttingProxy.#open.add(proxy);
    proxy.#server.listen(0, "127.0.0.1");
    await once(proxy.#server, "listening");
    return proxy;
  }

  /** Closes those that a failed test has left open. */
  static async closeAll(): Promise<void> {
    await Promise.all([...CuttingProxy.#open].map((proxy) => proxy.close()));
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port.toString()}`;
  }

  /** Cuts all connections. */
  cutAll(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  async close(): Promise<void> {
    CuttingProxy.#open.delete(this);
    this.cutAll();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #forward(client: Socket): void {
    this.connections += 1;
    const service = connect(this.#target);
    for (const socket of [client, service]) {
      this.#sockets.add(socket);
      socket.setNoDelay(true);
      socket.on("error", () => undefined);
      socket.once("close", () => {
        this.#sockets.delete(socket);
        client.destroy();
        service.destroy();
      });
    }
    const cut = (): void => {
      this.#cut.add(client);
    };
    client.pipe(service);
    client.on("data", (chunk: Buffer) => this.onSent?.(chunk.byteLength));
    service.on("data", (chunk: Buffer) => {
      if (this.#cut.has(client)) return;
      const part = this.onData === undefined ? chunk : this.onData(chunk, cut);
      const isLast = this.#cut.has(client);
      client.write(part, () => {
        // A reset could overtake what was written; the end is seen as a body that is cut off.
        if (isLast) client.destroySoon();
      });
      if (isLast) service.destroy();
    });
    service.on("end", () => client.end());
  }
}
