// An agent whose code does what the fact `do` says: `mesh check-agent NAME --run "node test/checked-agent.mjs"`.
import { connectAs, serve } from "../lib/index.js";

const { MESH_NAME: name, NATS_URL: servers, MESH_CREDENTIALS: seedFile } = process.env;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const running = await serve(await connectAs(name, { servers, seedFile }), { name }, async (turn) => {
  switch (turn.facts.do) {
    case "complete":
      return turn.complete(turn.facts.text);
    case "refused":
      return turn.refusals.length > 0 ? turn.complete(turn.refusals[0].rule) : turn.transfer("nobody", { summary: "to nobody" });
    case "transfer":
      return turn.handoff.move === "hand_back" ? turn.complete(turn.facts.found) : turn.transfer("counterpart", { summary: "look" });
    case "ask":
      return turn.reply === undefined ? turn.ask("What?") : turn.complete(turn.reply);
    case "large":
      return turn.complete("x".repeat(300_000));
    case "wait":
      await pause(turn.facts.for_s * 1000);
      return turn.complete("waited");
    default:
      throw new Error("broken");
  }
});
process.once("SIGTERM", async () => (await running.stop(), process.exit(0)));
