// A front end, as far as the protocol goes: AG-UI's official client, which a story directs with one JSON command per line.
// Its arguments are the URL of `/agui` and the engine's key. It prints one JSON object per line for everything that it sees.
import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";

const show = (object) => process.stdout.write(JSON.stringify(object) + "\n");
const [url, key] = process.argv.slice(2);
let agent;
// A stream that breaks is an error of more than its run.
for (const kind of ["unhandledRejection", "uncaughtException"]) {
  process.on(kind, (error) => show({ unhandled: String(error) }));
}

const run = async ({ run, tag }) => {
  try {
    const { result, newMessages } = await agent.runAgent(run, {
      onEvent: ({ event }) => show({ tag, event }),
    });
    show({ tag, result: result ?? null, newMessages, messages: agent.messages, interrupts: agent.pendingInterrupts, state: agent.state });
  } catch (error) {
    show({ tag, error: error.message, status: error.status, payload: error.payload, messages: agent.messages });
  }
};

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.thread) {
    agent = new HttpAgent({ url, headers: { Authorization: `Bearer ${key}` }, threadId: order.thread });
  }
  if (order.url) agent.url = order.url;
  if (order.say) agent.addMessage({ id: order.id, role: "user", content: order.say });
  if (order.run) void run(order);
  if (order.abort) agent.abortRun();
}
process.exit(0);
