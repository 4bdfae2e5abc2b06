// Pulling from an inbox by hand. The JetStream package would ask about the consumer after each reconnect, and agents may not.
import { randomBytes } from "node:crypto";
import { pause } from "./connection.js";

/** @typedef {import("@nats-io/transport-node").Msg} Msg */

const LATE_MS = 1_500;
const ACK_MS = 5_000;
/** @type {Record<number, number>} how long to wait after a status */
const PAUSE_MS = { 408: 0, 404: 100, 409: 100, 503: 250 };
const OTHER_MS = 2_000;

/** An event that is ours until its lease ends. */
export class Delivery {
  /** @param {import("./connection.js").NatsConnection} nc @param {Msg} message */
  constructor(nc, message) {
    this.nc = nc;
    this.message = message;
    this.subject = message.subject;
    this.headers = message.headers;
    const [count, seq, , storedNs] = (message.reply ?? "").split(".").slice(4); // $JS.ACK.<stream>.<consumer>.…
    this.count = Number(count);
    /** Its sequence in the stream. */
    this.seq = Number(seq);
    /** When it was stored, by the server's clock (µs). */
    this.storedUs = Number(BigInt(storedNs ?? 0) / 1000n);
  }

  /** Six more seconds. */
  working() {
    this.message.respond("+WPI");
  }

  /** Give it back. @param {number} [afterMs] */
  nak(afterMs = 0) {
    this.message.respond(afterMs > 0 ? `-NAK {"delay": ${afterMs * 1e6}}` : "-NAK");
  }

  /** It is never delivered again. @param {string} reason */
  term(reason) {
    this.message.respond(`+TERM ${reason}`);
  }

  /** Done for good; returns once the server has noted it. */
  async ack() {
    await this.nc.request(this.message.reply ?? "", "+ACK", { timeout: ACK_MS });
  }
}

/** One hand: takes one message at a time from the consumer `in-<name>`. */
export class Hand {
  /** @type {((message: Msg | undefined) => void) | undefined} */
  #waiting;

  /** @param {import("./connection.js").NatsConnection} nc @param {string} name @param {number} leaseMs */
  constructor(nc, name, leaseMs) {
    this.nc = nc;
    this.durable = `in-${name}`;
    this.expiresMs = (leaseMs * 2) / 3; // a pull ends before the lease, or a frozen process would get back what it lost
    this.inbox = `_I.${name}.${randomBytes(12).toString("hex")}`;
    nc.subscribe(this.inbox, { callback: (error, message) => void (error ?? this.#came(message)) });
  }

  /** Return the next delivery; undefined if none came. A pull dies without a word when the server restarts. */
  async next() {
    const body = JSON.stringify({ batch: 1, expires: this.expiresMs * 1e6 });
    /** @type {Promise<Msg | undefined>} */
    const answer = new Promise((resolve) => (this.#waiting = resolve));
    this.nc.publish(`$JS.API.CONSUMER.MSG.NEXT.LOG.${this.durable}`, body, { reply: this.inbox });
    const late = setTimeout(() => this.#waiting?.(undefined), this.expiresMs + LATE_MS);
    const message = await answer;
    clearTimeout(late);
    this.#waiting = undefined;
    if (message === undefined) return undefined;
    if (this.#isDelivery(message)) return new Delivery(this.nc, message);
    await pause(PAUSE_MS[message.headers?.code ?? 0] ?? OTHER_MS);
    return undefined;
  }

  /** @param {Msg} message */
  #came(message) {
    if (message.headers?.code === 100) return; // an idle heartbeat
    if (message.reply && !this.#isDelivery(message)) return; // not what our consumer sends
    if (this.#waiting !== undefined) this.#waiting(message);
    else if (message.reply) message.respond("-NAK"); // the answer to a pull that was given up
  }

  /** @param {Msg} message */
  #isDelivery(message) {
    return message.reply?.startsWith(`$JS.ACK.LOG.${this.durable}.`) ?? false;
  }
}
