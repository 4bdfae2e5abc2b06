// A connection to the mesh, how something is stored for good, and how the last message of a subject is read.
import { readFileSync } from "node:fs";
import { connect, nkeyAuthenticator } from "@nats-io/transport-node";

/** @typedef {import("@nats-io/transport-node").NatsConnection} NatsConnection */

/** The largest message that the queues take, in bytes, with its subject and headers. */
export const LARGEST_BYTES = 256 * 1024;
/** JetStream: the message is larger than the stream takes. */
export const TOO_LARGE = 10054;
/** JetStream: not stored; the stream is full, or a subject that is written once has its message. */
export const NOT_STORED = 10077;
const ANSWER_MS = 5_000;
const AGAIN_MS = 1_000;

/** JetStream did not store a message, and says why. */
export class NotStored extends Error {
  /** @param {{ err_code: number, description: string }} error */
  constructor(error) {
    super(`${error.description} (${error.err_code})`);
    this.name = "NotStored";
    this.errCode = error.err_code;
  }
}

/**
 * Connect as `name`. Without a seed file, as the client of a `mesh dev` on this machine.
 *
 * @param {string} name
 * @param {{ servers?: string | string[], seedFile?: string } & import("@nats-io/transport-node").NodeConnectionOptions} [options]
 * @returns {Promise<NatsConnection>}
 */
export async function connectAs(name, { servers = "nats://127.0.0.1:4222", seedFile, ...more } = {}) {
  /** @type {import("@nats-io/transport-node").NodeConnectionOptions} */
  const options = { servers, name, maxReconnectAttempts: -1, reconnectTimeWait: 250, pingInterval: 10_000, ...more };
  if (seedFile !== undefined) {
    options.authenticator = nkeyAuthenticator(new TextEncoder().encode(readFileSync(seedFile, "utf8").trim()));
    options.inboxPrefix = `_I.${name}`; // the default, _INBOX, is not ours to listen to
  }
  return await connect(options);
}

/**
 * Store `body` and return once JetStream has it. What is stored twice is decided once: so, without an answer, again.
 *
 * @param {NatsConnection} nc
 * @param {string} subject
 * @param {string} body
 * @param {{ headers?: import("@nats-io/transport-node").MsgHdrs }} [options]
 * @throws {NotStored} JetStream says no.
 */
export async function store(nc, subject, body, { headers } = {}) {
  for (let waitMs = 50; ; waitMs = Math.min(AGAIN_MS, waitMs * 2)) {
    /** @type {{ error?: { err_code: number, description: string } }} */
    let ack;
    try {
      ack = (await nc.request(subject, body, { timeout: ANSWER_MS, headers })).json();
    } catch (error) {
      if (nc.isClosed() || isDenied(error)) throw error;
      await pause(waitMs); // nobody can say whether it was stored
      continue;
    }
    if (!ack.error) return;
    if (ack.error.err_code >= 10_000 && ack.error.err_code !== 10_008) throw new NotStored(ack.error); // 10008: no leader yet
    await pause(waitMs);
  }
}

/**
 * Return the last message of `subject` in `stream`; undefined if there is none. Waits for a bus that is away.
 *
 * @param {NatsConnection} nc
 * @param {string} stream
 * @param {string} subject
 */
export async function last(nc, stream, subject) {
  for (let waitMs = 50; ; waitMs = Math.min(AGAIN_MS, waitMs * 2)) {
    try {
      const found = await nc.request(`$JS.API.DIRECT.GET.${stream}.${subject}`, "", { timeout: ANSWER_MS });
      const status = found.headers?.code ?? 0;
      if (status === 404) return undefined;
      if (status === 0) return found;
    } catch (error) {
      if (nc.isClosed() || isDenied(error)) throw error;
    }
    await pause(waitMs);
  }
}

/** @param {unknown} error */
function isDenied(error) {
  return error instanceof Error && /permissions violation/i.test(`${error.message} ${error.cause ?? ""}`);
}

/** @param {number} ms @returns {Promise<void>} */
export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
