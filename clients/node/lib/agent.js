// An agent: takes rounds off its inbox, runs its code on them, proposes what it returns, and only then acknowledges.
import { randomBytes } from "node:crypto";
import { headers } from "@nats-io/transport-node";
import { Unsendable, checked } from "./checked.js";
import { NOT_STORED, NotStored, TOO_LARGE, last, pause, store } from "./connection.js";
import { sha256 } from "./ids.js";
import { Hand } from "./inbox.js";
import { Broken, Fenced, InDoubt, Journal, Stopped } from "./journal.js";
import { FORM, otherForm } from "./log.js";
import { answerPings } from "./presence.js";
import { Turn } from "./turn.js";

/** @typedef {import("./connection.js").NatsConnection} NatsConnection */
/** @typedef {import("./inbox.js").Delivery} Delivery */
/** @typedef {import("./messages.js").Proposal} Proposal */
/**
 * @typedef {object} About
 * @property {string} name
 * @property {string} [version] MAJOR.MINOR.PATCH
 * @property {string} [description]
 * @property {number} [hands] how many rounds at once; default 8
 * @property {(what: Record<string, unknown>) => void} [log] told of what happens: ids and codes, no text
 */

const ROUNDS = new Set(
  "request.opened handoff.admitted task.opened move.refused turn.retried turn.resumed escalation.resolved effect.settled".split(" "),
);
const OFFER = "task.offered"; // this client claims no offers: one that comes to it alone is for others to claim
const NEWER_MS = 5_000;
const UNREADABLE_AFTER_MS = 3_600_000;
const REMEMBERED = 1_000;
const MESSAGE_CHARS = 500;

/** The turn is over, by another hand. */
class Over extends Stopped {}

/**
 * Serve an agent until `stop`. Connect with the agent's own seed.
 *
 * @param {NatsConnection} nc
 * @param {About} about
 * @param {(turn: Turn) => Promise<import("./messages.js").Move> | import("./messages.js").Move} code from a round to a move
 */
export async function serve(nc, about, code) {
  const served = new Serving(nc, about, code);
  await served.start();
  return { stop: () => served.stop(), done: served.done };
}

/** A round in hand. */
class Running {
  /** @param {Delivery} delivery @param {string} request @param {import("./messages.js").Assignment} work */
  constructor(delivery, request, { turn, round }) {
    this.delivery = delivery;
    this.request = request;
    this.turn = turn;
    this.round = round;
    this.looking = false;
    this.abort = new AbortController();
  }
}

class Serving {
  /** @param {NatsConnection} nc @param {About} about @param {(turn: Turn) => any} code */
  constructor(nc, about, code) {
    this.nc = nc;
    this.about = about;
    this.name = about.name;
    this.code = code;
    this.log = about.log ?? (() => {});
    this.instance = randomBytes(8).toString("hex");
    this.stopping = false;
    this.leaseMs = 6_000;
    /** @type {string[] | undefined} */
    this.actions = undefined;
    /** @type {Map<string, Running>} by request and turn */
    this.running = new Map();
    /** @type {Map<string, { request: string, turn: string, round: number }>} by digest: what was proposed lately */
    this.proposed = new Map();
    /** @type {Promise<void>} resolved once everything in hand is done */
    this.done = Promise.resolve();
  }

  async start() {
    const { nc, name } = this;
    const readFleet = async () => {
      const fleet = (await last(nc, "CONF", "mesh.conf.fleet"))?.json();
      this.leaseMs = (fleet?.lease_s ?? 6) * 1_000;
      this.actions = fleet?.agents[name]?.actions ?? undefined;
    };
    await readFleet();
    const again = setInterval(() => void readFleet().catch(() => {}), 30_000);
    answerPings(nc, this.about, this.instance);
    nc.subscribe(`mesh.note.${name}.*`, { callback: (error, note) => void (error ?? this.#told(note)) });
    await nc.flush();
    const card = { name, version: this.about.version ?? "0.0.0", description: this.about.description ?? "", instance: this.instance };
    await store(nc, `mesh.card.${name}`, JSON.stringify(card));
    const hands = Array.from({ length: this.about.hands ?? 8 }, () => this.#work());
    this.done = Promise.all(hands).then(() => clearInterval(again));
    this.log({ ready: name, instance: this.instance });
  }

  /** Take nothing more, finish what is in hand, then resolve. */
  async stop() {
    this.stopping = true;
    await this.done;
    await this.nc.drain();
  }

  /** One hand: pull, work, pull. */
  async #work() {
    const hand = new Hand(this.nc, this.name, this.leaseMs);
    while (!this.stopping && !this.nc.isClosed()) {
      try {
        const delivery = await hand.next();
        if (delivery === undefined) continue;
        if (this.stopping) delivery.nak();
        else await this.#take(delivery);
      } catch (error) {
        this.log({ failed: messageOf(error) }); // what was not acknowledged comes again when the lease ends
        await pause(250);
      }
    }
  }

  // --- one delivery --------------------------------------------------------------------------------

  /** @param {Delivery} delivery */
  async #take(delivery) {
    const age = Date.now() - delivery.storedUs / 1_000;
    const event = readable(delivery, this.name);
    if (event.v === FORM && event.type === OFFER) {
      this.log({ left: event.type, request: event.request });
      return await delivery.ack();
    }
    if (typeof event !== "string" && (event.v !== FORM || !ROUNDS.has(event.type)) && age < UNREADABLE_AFTER_MS) {
      return delivery.nak(NEWER_MS); // for a newer process of this agent
    }
    if (typeof event === "string" || event.v !== FORM || !ROUNDS.has(event.type)) return await this.#bury(delivery, event);
    const { request, work } = event;
    const key = `${request}/${work.turn}`;
    const before = this.running.get(key);
    if (before !== undefined && before.round === work.round) {
      before.delivery = delivery; // the lease was lost and found: go on under the new one
      return;
    }
    before?.abort.abort(new Over("a newer round began"));
    const running = new Running(delivery, request, work);
    this.running.set(key, running);
    const beat = setInterval(() => {
      running.delivery.working();
      if (!running.looking) void this.#look(running); // a note is lost with its connection, or comes before its round
    }, this.leaseMs / 3);
    try {
      this.log({ took: event.type, request, turn: work.turn, round: work.round, refusal: work.past?.at(-1)?.refusal?.rule });
      const again = delivery.count > 1 || age > 1_000;
      await this.#run(running, request, work, again);
    } finally {
      clearInterval(beat);
      if (this.running.get(key) === running) this.running.delete(key);
    }
  }

  /** @param {Running} running @param {string} request @param {import("./messages.js").Assignment} work @param {boolean} again */
  async #run(running, request, work, again) {
    const { nc, name, leaseMs } = this;
    const nonce = `${this.instance}-${randomBytes(4).toString("hex")}`;
    const journal = new Journal({ nc, agent: name, request, work, nonce, leaseMs });
    const lookFirst = async () => {
      if (running.abort.signal.aborted) throw running.abort.signal.reason;
      const over = await this.#ended(request, work.turn);
      if (over !== undefined) throw (journal.stopped = new Over(over));
    };
    const ran = { version: this.about.version ?? "", build: process.env.MESH_BUILD ?? "" };
    const turn = new Turn(request, work, journal, running.abort.signal, this.actions, lookFirst);
    const place = { turn: work.turn, round: work.round };
    /** @type {Proposal | undefined} */
    let proposal;
    try {
      if (again) {
        await lookFirst();
        await journal.begin();
      }
      const move = await until(running.abort.signal, Promise.resolve().then(() => this.code(turn)));
      if (journal.stopped !== undefined) throw journal.stopped; // caught by the code: its move does not count
      proposal = { kind: "move", ...place, move, report: { ...turn.report(), ...ran } };
    } catch (error) {
      const why = journal.stopped ?? error;
      if (why instanceof Fenced && !why.closed) return void this.log({ fenced: request, ...place }); // another one is at it
      if (!(why instanceof Over || why instanceof Fenced)) proposal = { ...failure(place, why), report: { ...turn.report(), ...ran } };
    }
    if (proposal !== undefined) await this.#propose(request, proposal, running.delivery);
    const said = proposal?.kind === "move" ? { proposed: proposal.move.move } : { proposed: proposal?.kind ?? "nothing" };
    await running.delivery.ack(); // only now
    this.log({ ...said, request, ...place, code: proposal?.kind === "turn_failed" ? proposal.error.code : undefined });
  }

  /** Store a proposal; one that cannot be sent becomes the turn's failure, or the round would wait for its time to end. */
  async #propose(/** @type {string} */ request, /** @type {Proposal} */ proposal, /** @type {Delivery} */ delivery) {
    const subject = `mesh.prop.${this.name}.${request}`;
    const trace = delivery.headers?.get("traceparent");
    const carried = headers();
    if (trace) carried.set("traceparent", trace);
    const options = trace ? { headers: carried } : {};
    let failed = proposal;
    try {
      const body = checked(`proposal.${proposal.kind}`, proposal);
      this.#remember(sha256(body), { request, turn: proposal.turn, round: proposal.round });
      return await this.#stored(subject, body, options);
    } catch (error) {
      const tooLarge = error instanceof Unsendable ? error.code === "too_large" : error instanceof NotStored && error.errCode === TOO_LARGE;
      if (!tooLarge && !(error instanceof Unsendable)) throw error;
      const place = { turn: proposal.turn, round: proposal.round };
      failed = failure(place, new Broken(tooLarge ? "proposal_too_large" : "proposal_malformed", messageOf(error), { permanent: true }));
    }
    await this.#stored(subject, JSON.stringify(failed), options);
  }

  /** Store, and wait for room where the queue is full. @param {string} subject @param {string} body @param {object} options */
  async #stored(subject, body, options) {
    for (;;) {
      try {
        return await store(this.nc, subject, body, options);
      } catch (error) {
        if (!(error instanceof NotStored) || error.errCode !== NOT_STORED) throw error;
        await pause(1_000);
      }
    }
  }

  /** @param {string} digest @param {{ request: string, turn: string, round: number }} place */
  #remember(digest, place) {
    this.proposed.set(digest, place);
    const [oldest] = this.proposed.keys();
    if (this.proposed.size > REMEMBERED && oldest !== undefined) this.proposed.delete(oldest);
  }

  /** @param {Delivery} delivery @param {any} event */
  async #bury(delivery, event) {
    const known = typeof event === "string" || event.v === FORM;
    const detail = !known ? otherForm("it", event.v) : typeof event === "string" ? event : "its type is not known here";
    const letter = {
      at: Date.now() * 1_000, by: this.name, code: "unreadable_event", detail, subject: delivery.subject,
      request: delivery.subject.split(".").at(-1), delivered: delivery.count,
      data: Buffer.from(delivery.message.data.subarray(0, 256 * 1024)).toString("base64"),
      stream_seq: delivery.seq, stored_at: delivery.storedUs,
    };
    await store(this.nc, `mesh.dead.${this.name}`, JSON.stringify(letter));
    delivery.term("unreadable");
    this.log({ buried: delivery.subject, why: detail });
  }

  // --- being told ----------------------------------------------------------------------------------

  /** Return why a guard ended a turn; undefined if none did. @param {string} request @param {string} turn */
  async #ended(request, turn) {
    const ended = await last(this.nc, "ENDS", `mesh.end.${this.name}.${request}.${turn}`);
    return ended === undefined ? undefined : String(ended.json().why);
  }

  /** Stop a round whose turn a guard has ended. @param {Running} running */
  async #look(running) {
    running.looking = true;
    try {
      const why = await this.#ended(running.request, running.turn);
      if (why !== undefined) running.abort.abort(new Over(why));
    } catch (error) {
      this.log({ failed: messageOf(error), request: running.request }); // the next heartbeat looks again
    } finally {
      running.looking = false;
    }
  }

  /** @param {import("@nats-io/transport-node").Msg} note */
  async #told(note) {
    if (note.data.length === 0) return;
    /** @type {any} */
    let notice;
    try {
      notice = note.json();
    } catch {
      return; // anybody's mistake may lie there
    }
    this.log({ notice });
    const running = this.running.get(`${notice?.request}/${notice?.ended?.turn}`);
    if (running !== undefined) return await this.#look(running);
    await this.#rejected(notice).catch((error) => this.log({ failed: messageOf(error), request: notice.request }));
  }

  /** A proposal of ours was not taken up, and its round waits: it failed. @param {any} notice */
  async #rejected(notice) {
    const place = this.proposed.get(notice?.digest);
    if (place === undefined || notice.error?.code !== "event_too_large") return; // of the others the guard made something itself
    const { request, turn, round } = place;
    const said = failure({ turn, round }, new Broken("proposal_rejected", notice.error.code, { permanent: true }));
    await this.#stored(`mesh.prop.${this.name}.${request}`, JSON.stringify(said), {});
  }
}

/** Return the event in a delivery, or why there is none. @param {Delivery} delivery @param {string} name @returns {any} */
function readable(delivery, name) {
  try {
    const event = /** @type {any} */ (delivery.message.json());
    if (event === null || typeof event !== "object") return "it is no event";
    if (event.v !== FORM || !ROUNDS.has(event.type)) return event;
    const { to, request, work } = event;
    if (delivery.subject !== `mesh.evt.${name}.${request}` || to !== name) return "it is another's";
    if (typeof request !== "string" || typeof work?.turn !== "string" || typeof work.handoff !== "object") return "it gives no work";
    return { ...event, work: { ...work, round: work.round ?? 0 } };
  } catch {
    return "it is no JSON";
  }
}

/** @param {{ turn: string, round: number }} place @param {unknown} why @returns {Proposal} */
function failure(place, why) {
  if (why instanceof InDoubt) return { kind: "effect_doubted", ...place, effect: why.effect };
  if (!(why instanceof Broken)) return { kind: "turn_failed", ...place, error: { code: "bug", message: why instanceof Error ? why.name : "bug" } };
  const { code, permanent, retryAfterS } = why;
  const error = { code, message: why.message.slice(0, MESSAGE_CHARS), permanent };
  return { kind: "turn_failed", ...place, error: retryAfterS === undefined ? error : { ...error, retry_after_s: retryAfterS } };
}

/** Return what comes first: the promise, or the reason of an abort. @template T @param {AbortSignal} signal @param {Promise<T>} promise @returns {Promise<T>} */
async function until(signal, promise) {
  /** @type {() => void} */
  let stop = () => {};
  const aborted = new Promise((_, reject) => {
    stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
  });
  try {
    return await /** @type {Promise<T>} */ (Promise.race([promise, aborted]));
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

/** @param {unknown} error */
const messageOf = (error) => (error instanceof Error ? error.message : String(error));
