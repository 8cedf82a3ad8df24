// Uses an engine with OpenAI's official SDK: `openai_client.mjs SCENARIO BASE_URL KEY`. Prints one JSON object per line.
import { createInterface } from "node:readline";
import OpenAI from "openai";

const [scenario, baseURL, apiKey, idempotencyKey] = process.argv.slice(2);
const client = (key = apiKey) => new OpenAI({ baseURL, apiKey: key, maxRetries: 0, timeout: 60_000 });
const show = (fields) => console.log(JSON.stringify(fields));
const messages = (content) => [{ role: "user", content }];
const model = "default";
const line = () => new Promise((resolve) => createInterface({ input: process.stdin }).once("line", resolve));

async function chat() {
  const api = client();
  const models = [];
  for await (const one of api.models.list()) models.push(one.id);
  const done = await api.chat.completions.create({ model, messages: messages("Grüß Gott") });
  let content = "";
  for await (const chunk of await api.chat.completions.create({ model, messages: messages("Wohin?"), stream: true })) {
    content += chunk.choices[0]?.delta?.content ?? "";
  }
  show({ models, once: done.choices[0].message.content, streamed: content });
  const stream = api.responses.stream({ model, input: "Rede.", conversation: "täsk" });
  const final = await stream.finalResponse();
  const again = await api.responses.retrieve(final.id);
  show({ text: final.output_text, again: again.output_text, status: again.status });
  const refusals = [];
  for (const call of [
    () => client("sk-svc-wrong").models.list(),
    () => api.chat.completions.create({ model, messages: messages("Hi"), logprobs: true }),
    () => api.responses.retrieve("resp_x"),
  ]) {
    await call().then(() => refusals.push(null), (error) => refusals.push([error.constructor.name, error.code]));
  }
  show({ refusals });
}

async function permission() {
  const stream = await client().chat.completions.create({
    model, messages: messages("Write."), stream: true, roundhouse: { task_id: "task" },
  });
  let content = "";
  for await (const chunk of stream) {
    if (chunk.roundhouse) show({ asked: chunk.roundhouse.hitl_request.kind });
    content += chunk.choices[0]?.delta?.content ?? "";
  }
  show({ content });
}

async function asked() {
  const api = client();
  const waiting = await api.responses.create({ model, input: "Write.", conversation: "task" });
  show({ status: waiting.status, items: waiting.output.map((item) => item.type), id: waiting.id });
  await line();
  let last;
  for await (const event of await api.responses.retrieve(waiting.id, { stream: true })) last = event;
  const [message] = last.response.output.filter((item) => item.type === "message");
  show({ status: last.response.status, text: message.content[0].text });
  process.exit(0);
}

// Reads a completion until the engine dies, and after a line of input makes the same request again.
async function again() {
  const read = async () => {
    let text = "";
    let id = null;
    try {
      const request = { model, messages: messages("Erzähl."), stream: true };
      for await (const chunk of await client().chat.completions.create(request, { headers: { "Idempotency-Key": "once" } })) {
        id = chunk.id;
        const piece = chunk.choices[0]?.delta?.content ?? "";
        if (piece && !text) show({ began: true });
        text += piece;
      }
      return { broken: false, text, id };
    } catch (error) {
      return { broken: error.constructor.name, text, id };
    }
  };
  show(await read());
  await line();
  show(await read());
  process.exit(0);
}

// Does not notice that the engine dies: the SDK tries again, as often as it does by default.
async function retries() {
  const api = new OpenAI({ baseURL, apiKey, timeout: 60_000 });
  const headers = idempotencyKey ? { "Idempotency-Key": idempotencyKey } : {};
  const done = await api.chat.completions.create({ model, messages: messages("Erzähl.") }, { headers });
  show({ text: done.choices[0].message.content });
}

async function resume() {
  const api = client();
  const events = [];
  let id;
  try {
    const stream = await api.responses.create({ model, input: "Erzähl.", conversation: "task", stream: true });
    for await (const event of stream) {
      const isFirstText = event.type === "response.output_text.delta" && !events.some(({ type }) => type === event.type);
      events.push(event);
      id ??= event.response?.id;
      if (isFirstText) show({ id });
    }
    show({ broken: false });
  } catch (error) {
    show({ broken: error.constructor.name });
  }
  await line();
  const rest = await api.responses.retrieve(id, { stream: true, starting_after: events.at(-1).sequence_number });
  for await (const event of rest) events.push(event);
  show({ events });
  process.exit(0);
}

await { chat, permission, asked, again, retries, resume }[scenario]();
