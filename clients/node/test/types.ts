// Nothing runs this: it holds the types to what an agent's author writes.
import { Client, Retry, connectAs, serve, type Turn } from "../lib/index.js";

const nc = await connectAs("front", { servers: "nats://127.0.0.1:4222", seedFile: "keys/front.nk" });
const running = await serve(nc, { name: "front", version: "1.0.0" }, async (turn: Turn) => {
  const found: number = await turn.call("look_up", { name: turn.facts["name"] }, () => 1299, {
    secret: ["name"],
    cost: (cents) => ({ nano_dollars: cents, tokens: 0, model_calls: 0 }),
  });
  // @ts-expect-error a misspelt name
  if (found > 9_000) return turn.transfer("records", { summary: "look", return_too: "front" });
  if (found < 0) throw new Retry("later", { afterS: 5 });
  return turn.transfer("records", { summary: "look", facts: { found }, labels: { found: ["pii"] }, intent: "look_up" });
});
await running.stop();

const end = await new Client(nc, "app").request({ text: "What do I owe?", to: "front" }).result({ onQuestion: () => "yes" });
if (end.type === "request.completed") console.log(end.answer);
// @ts-expect-error a request has no such end
if (end.type === "request.done") console.log(end);
