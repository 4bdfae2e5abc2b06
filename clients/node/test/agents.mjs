// Agents that do one thing each, as a process: HOW says which, and then each line of standard input.
import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { ToolError, connectAs, serve } from "../lib/index.js";

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const forever = () => new Promise(() => {});
const done = (what) => appendFileSync(process.env.LEDGER, `${what}\n`);

const codes = {
  async answers(turn) {
    return turn.complete({ text: turn.facts.text, round: turn.work.round });
  },
  async handsOver(turn) {
    if (turn.handoff.move === "hand_back") return turn.complete(`You owe ${turn.facts.balance.cents / 100}.`);
    return turn.transfer(turn.refusals.length > 0 ? "records" : "ledger", { summary: "find the balance", intent: "look_up" });
  },
  async handsBack(turn) {
    return turn.handBack("looked up", { facts: { balance: { cents: 1299 } } });
  },
  async diesInAnEffect(turn) {
    const found = await turn.call("look_up", { of: "me" }, () => (done("look_up"), 7));
    const first = process.env.FIRST === "yes";
    const paid = await turn.call("refund", { found }, async (key) => {
      done(`refund ${key}`);
      if (first) {
        say({ dying: true });
        await forever();
      }
      return "paid";
    }, { effect: process.env.EFFECT ?? "idempotent" });
    return turn.complete({ found, paid });
  },
  async paysByCard(turn) {
    const paid = await turn.call("refund", { card: "4111", cents: 5 }, () => "paid", { effect: "idempotent", secret: ["card"] });
    return turn.complete(paid);
  },
  async tooLarge(turn) {
    return turn.complete("x".repeat(300 * 1024));
  },
  async malformed(turn) {
    return { move: "transfer", to_agent: null, summary: "x" };
  },
  async notANumber(turn) {
    return turn.complete(0 / 0);
  },
  async saysNo(turn) {
    try {
      await turn.call("look_up", {}, () => {
        throw new ToolError("unknown", "no such customer");
      });
    } catch (error) {
      if (!(error instanceof ToolError)) throw error;
      return turn.complete(error.code);
    }
  },
  async asks(turn) {
    if (turn.reply === undefined) return turn.ask("Which invoice?", { schema: { type: "string" } });
    return turn.complete(turn.reply);
  },
  async leads(turn) {
    if (turn.work.round > 0) return turn.complete(Object.values(turn.results).map(({ summary }) => summary));
    const task = (name) => turn.task(name, { summary: name, to: "records", facts: { of: name } });
    return turn.delegate([task("left"), task("right")]);
  },
  async asksInATask(turn) {
    if (turn.reply === undefined) return turn.ask(`Which ${turn.handoff.summary}?`);
    return turn.deliver(turn.reply);
  },
  async waits(turn) {
    turn.signal.addEventListener("abort", () => say({ aborted: turn.work.round, why: turn.signal.reason.message }));
    if (turn.work.round > 0) return turn.complete("second");
    say({ waits: turn.request });
    await forever();
  },
  async forbidden(turn) {
    await turn.call("launch", {}, () => "launched");
    return turn.complete("launched");
  },
};

const name = process.env.MESH_NAME;
let how = process.env.HOW;
const nc = await connectAs(name, { servers: process.env.NATS_URL, seedFile: process.env.MESH_CREDENTIALS });
if (process.env.DEAF === "yes") {
  const subscribe = nc.subscribe.bind(nc);
  nc.subscribe = (subject, how) => (subject.startsWith("mesh.note.") ? undefined : subscribe(subject, how));
}
const running = await serve(nc, { name, version: "1.0.0", log: say }, (turn) => codes[how](turn));
process.once("SIGTERM", async () => {
  await running.stop();
  process.exit(0);
});
createInterface({ input: process.stdin })
  .on("line", (line) => say({ does: (how = line) }))
  .once("close", () => process.exit(1)); // it does not outlive its test
