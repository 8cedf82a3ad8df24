import { Fleet, TurnFailedError } from "roundhouse-client";

const fleet = new Fleet({
  url: process.env["ROUNDHOUSE_URL"] ?? "http://127.0.0.1:8000",
  productKey: process.env["ROUNDHOUSE_PRODUCT_KEY"] ?? "",
});
const engine = await fleet.admit("ada");

const turn = engine.run("shopping", "write shopping.txt: milk", {
  max_turns: 10,
  // Called when the agent needs a permission or asks a question. It may take days.
  onRequest: (request, { approval }) => {
    console.log(request.question, approval?.preview);
    return request.kind === "permission" ? "yes" : "I do not know.";
  },
});

for await (const event of turn) {
  switch (event.type) {
    case "text_delta":
      process.stdout.write(event.text);
      break;
    case "tool_call":
      console.log(`→ ${event.tool}`, event.input);
      break;
    case "thread_lifecycle":
      // A step of the model is repeated: show what still counts of the text so far.
      if (event.phase === "retrying") console.log(`\n${turn.transcript.text}`);
      break;
    case "unknown":
      console.log(`an event of a later version: ${event.event}`);
      break;
    default:
  }
}

try {
  const { text, stopReason, usage } = await turn.result();
  console.log(`\n${stopReason}, ${String(usage?.output_tokens)} tokens, ${String(text.length)} characters`);
} catch (error) {
  if (!(error instanceof TurnFailedError)) throw error;
  console.error(error.code, error.message, error.retryable ? "(try again later)" : "");
}
