// A connection to the mesh, and the one way to say something to it: request until it is stored.
import { readFileSync } from "node:fs";
import { connect, nkeyAuthenticator } from "@nats-io/transport-node";

export const STORE_WITHIN_MS = 5_000;

/** Connect as MESH_NAME with the seed file MESH_CREDENTIALS; without one, as the client of `mesh dev`. */
export async function connectAs(name, { url = process.env.NATS_URL, seedFile = process.env.MESH_CREDENTIALS } = {}) {
  const options = { servers: url ?? "nats://127.0.0.1:4222", name, maxReconnectAttempts: -1 };
  if (seedFile) {
    options.authenticator = nkeyAuthenticator(new TextEncoder().encode(readFileSync(seedFile, "utf8").trim()));
    options.inboxPrefix = `_I.${name}`; // the default, _INBOX, is not ours to listen to
  }
  return await connect(options);
}

/** Store `body` (text) and return JetStream's acknowledgement. What is stored twice is decided once, so: again. */
export async function store(nc, subject, body) {
  for (let attempt = 0; ; attempt++) {
    let ack;
    try {
      ack = (await nc.request(subject, body, { timeout: STORE_WITHIN_MS })).json();
    } catch (error) {
      if (attempt === 20 || /permissions violation/i.test(error.message)) throw error;
      await pause(Math.min(1000, 50 * 2 ** attempt)); // nobody can say whether it was stored
      continue;
    }
    if (!ack.error) return ack;
    throw Object.assign(new Error(ack.error.description), { errCode: ack.error.err_code });
  }
}

/** Return the event in a direct get's answer; undefined when there is nothing yet (404). */
export function eventIn(message) {
  return message.headers?.code === 404 ? undefined : message.json();
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Say one thing on standard output, as one line of JSON. */
export const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
