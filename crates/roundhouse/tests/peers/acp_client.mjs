// A code editor, as far as the protocol goes: ACP's official npm SDK, which a story directs with one JSON command per line.
// Its arguments are the agent's command line. It prints one JSON object per line for everything that it sees.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const show = (object) => process.stdout.write(JSON.stringify(object) + "\n");
const [command, ...args] = process.argv.slice(2);
const child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const exited = new Promise((resolve) => child.on("exit", (code) => resolve(code)));

let asked = 0;
const answers = new Map();
const ask = (what) => ({ params, signal }) => {
  const key = ++asked;
  show({ [what]: params, key });
  signal.addEventListener("abort", () => show({ withdrawn: key }));
  return new Promise((resolve, reject) => answers.set(key, { resolve, reject }));
};

const app = acp
  .client({ name: "story" })
  .onRequest(acp.methods.client.session.requestPermission, ask("permission"))
  .onRequest(acp.methods.client.elicitation.create, ask("elicitation"))
  .onNotification(acp.methods.client.session.update, ({ params }) => {
    show({ session: params.sessionId, update: params.update });
  });
const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
const connection = app.connect(stream);

const call = async ({ call, params, tag }) => {
  try {
    show({ tag, result: await connection.agent.request(call, params) });
  } catch (error) {
    show({ tag, error: { code: error.code, message: error.message, data: error.data } });
  }
};

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.call) void call(order);
  if (order.cancel) void connection.agent.notify(acp.methods.agent.session.cancel, { sessionId: order.cancel });
  if (order.answer && order.result) answers.get(order.answer).resolve(order.result);
  if (order.answer && order.refuse) answers.get(order.answer).reject(acp.RequestError.methodNotFound("asking"));
}
child.stdin.end();
show({ exit: await exited });
process.exit(0);
