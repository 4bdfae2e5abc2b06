// An agent: takes rounds off its inbox, one at a time, and proposes.  node agent.mjs
import { randomBytes } from "node:crypto";
import { connectAs, pause, say, store } from "./bus.mjs";

const HEARTBEAT_MS = 2_000; // the lease is 6 s
const PULL_NS = 4_000_000_000; // less than the lease
const SILENCE_MS = 5_500; // a pull that has not even ended by then is lost
const AGAIN_MS = { 408: 0, 404: 100, 409: 100, 503: 250 };

const name = process.env.MESH_NAME ?? "front";
const nc = await connectAs(name);
const instance = randomBytes(8).toString("hex");

/** What this agent does: from a round's `work` to a move. */
async function decide(work) {
  const fact = (key) => work.handoff.facts?.find((each) => each.key === key)?.value;
  if (work.handoff.move === "hand_back") {
    const { cents, currency } = fact("balance");
    return { move: "complete", answer: `You owe ${(cents / 100).toFixed(2)} ${currency}.` };
  }
  const refused = work.past?.some((past) => past.how === "refused");
  // Not every fleet has a ledger; where the guard says so, the records will do.
  return { move: "transfer", to_agent: refused ? "records" : "ledger", summary: "find the balance", intent: "look_up" };
}

// --- one delivery ---------------------------------------------------------------------------------

async function onRound(delivery) {
  const beat = setInterval(() => delivery.respond("+WPI"), HEARTBEAT_MS);
  try {
    const event = delivery.json();
    if (event.v !== 1) return delivery.respond('-NAK {"delay": 5000000000}'); // for a newer process
    const { turn, round, past = [], reported } = event.work;
    say({ took: event.type, request: event.request, round, refusal: past.at(-1)?.refusal });
    let proposal;
    if (!(await isOver(delivery, event.request, turn))) {
      try {
        proposal = { kind: "move", turn, round, move: await decide(event.work), report: reported };
      } catch (error) {
        proposal = { kind: "turn_failed", turn, round, error: { code: "bug", message: error.name }, report: reported };
      }
      await propose(event.request, proposal);
    }
    await nc.request(delivery.reply, "+ACK", { timeout: 5_000 }); // only now
    say({ proposed: proposal?.move?.move ?? proposal?.kind ?? "nothing", to: proposal?.move?.to_agent });
  } catch (error) {
    say({ failed: error.message }); // not acknowledged: it comes again when the lease ends
  } finally {
    clearInterval(beat);
  }
}

/** Store a proposal; one that is too large for the bus becomes the turn's failure, or the round would hang. */
async function propose(request, proposal) {
  const subject = `mesh.prop.${name}.${request}`;
  try {
    await store(nc, subject, JSON.stringify(proposal));
  } catch (error) {
    if (error.errCode !== 10054) throw error;
    const { turn, round } = proposal;
    const failure = { code: "proposal_too_large", permanent: true };
    await store(nc, subject, JSON.stringify({ kind: "turn_failed", turn, round, error: failure }));
  }
}

/** Say whether a guard ended the turn meanwhile; worth asking for a delivery that is not the first. */
async function isOver(delivery, request, turn) {
  const deliveries = Number(delivery.reply.split(".")[4]);
  if (deliveries === 1) return false;
  const end = await nc.request(`$JS.API.DIRECT.GET.STEPS.mesh.end.${name}.${request}.${turn}`, "", { timeout: 5_000 });
  return end.headers?.code !== 404;
}

// --- pulling --------------------------------------------------------------------------------------

const inbox = `_I.${name}.${randomBytes(12).toString("hex")}`;
let heardAt = 0;
let busy = false;
let stopping = false;
let lastPullEnded = () => {};

function pull() {
  if (stopping) return lastPullEnded();
  heardAt = Date.now();
  nc.publish(`$JS.API.CONSUMER.MSG.NEXT.LOG.in-${name}`, JSON.stringify({ batch: 1, expires: PULL_NS }), { reply: inbox });
}

nc.subscribe(inbox, {
  callback: async (error, message) => {
    if (error) return;
    if (!message.reply) {
      const status = message.headers?.code;
      if (status === 100) return void (heardAt = Date.now());
      await pause(AGAIN_MS[status] ?? 2_000);
      return pull();
    }
    if (stopping || busy) {
      message.respond("-NAK"); // more than we have hands for
      return stopping ? lastPullEnded() : undefined;
    }
    busy = true;
    await onRound(message);
    busy = false;
    pull();
  },
});

// --- being found, being told ----------------------------------------------------------------------

for (const tail of ["", `.${name}`, `.${name}.${instance}`]) {
  nc.subscribe(`$SRV.PING${tail}`, {
    callback: (error, ping) => {
      const metadata = { role: "agent" };
      ping.respond(JSON.stringify({ type: "io.nats.micro.v1.ping_response", name, id: instance, version: "1.0.0", metadata }));
    },
  });
}
nc.subscribe(`mesh.note.${name}.*`, {
  callback: (error, note) => {
    if (!error && note.data.length > 0) say({ notice: note.json() });
  },
});
await nc.flush();
await store(nc, `mesh.card.${name}`, JSON.stringify({ name, version: "1.0.0", description: "Answers customers", instance }));

setInterval(() => {
  if (!busy && !stopping && Date.now() - heardAt > SILENCE_MS) pull();
}, 1_000).unref();
pull();
say({ ready: name, instance });

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.once(signal, async () => {
    const ended = new Promise((resolve) => (lastPullEnded = resolve));
    stopping = true; // what is in hand is finished, what still comes is given back
    await ended;
    await nc.drain();
    process.exit(0);
  });
}
