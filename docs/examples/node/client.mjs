// Submit a request and wait for its answer:  node client.mjs [--id ID] [--fact KEY=VALUE]... TEXT
// Exit status: 0 completed, 1 another end, 3 not taken up.
import { createHash, randomBytes } from "node:crypto";
import { parseArgs } from "node:util";
import { connectAs, eventIn, pause, say, store } from "./bus.mjs";

const LOOK_EVERY_MS = 1_000;
const ENDS = ["request.completed", "request.failed", "request.expired", "request.cancelled", "request.refused"];

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { id: { type: "string" }, fact: { type: "string", multiple: true, default: [] } },
});
const name = process.env.MESH_NAME ?? "app";

function ulid() {
  let value = BigInt(`0x${Date.now().toString(16)}${randomBytes(10).toString("hex")}`);
  let text = "";
  for (let i = 0; i < 26; i++, value >>= 5n) text = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[Number(value & 31n)] + text;
  return text;
}

const nc = await connectAs(name);
const id = values.id ?? `${name}_${ulid()}`;
const facts = values.fact.map((fact) => {
  const [key, ...rest] = fact.split("=");
  return { key, value: rest.join("=") };
});
const body = JSON.stringify({ text: positionals.join(" "), facts });
const digest = createHash("sha256").update(body).digest("hex");
let wake = () => {};
let rejected;

// Notes are hints: they make the next look come sooner, and a notice says why there is nothing to see.
nc.subscribe(`mesh.note.${name}.*`, {
  callback: (error, note) => {
    if (error) return;
    if (note.data.length > 0) {
      const notice = note.json();
      if (notice.request !== id) return;
      say({ notice });
      if (notice.digest === digest) rejected = notice.error; // about these very bytes, not another's
    }
    wake();
  },
});
await nc.flush();

const ack = await store(nc, `mesh.prop.${name}.${id}`, body);
say({ submitted: id, ack });

const answered = new Set();
let ended;
while (!ended && !rejected) {
  const noted = new Promise((resolve) => (wake = resolve)); // before looking, so that no note is missed
  const event = eventIn(await nc.request(`$JS.API.DIRECT.GET.LOG.mesh.evt.${name}.${id}`, "", { timeout: 5_000 }));
  if (event && ENDS.includes(event.type)) {
    ended = event;
  } else if (!rejected) {
    if (event?.type === "turn.suspended" && !answered.has(event.id)) {
      answered.add(event.id);
      say({ asked: event.ask.question });
      // A person would answer here, in the form that `event.ask.schema` describes.
      const reply = { kind: "reply", id: randomBytes(8).toString("hex"), turn: event.turn, round: event.round, value: "yes" };
      await store(nc, `mesh.ctl.${name}.${id}`, JSON.stringify(reply));
    }
    await Promise.race([noted, pause(LOOK_EVERY_MS)]);
  }
}
if (ended) say({ ended: ended.type, answer: ended.answer, refusal: ended.refusal, code: ended.code, reason: ended.reason });
await nc.close();
process.exit(rejected ? 3 : ended.type === "request.completed" ? 0 : 1);
