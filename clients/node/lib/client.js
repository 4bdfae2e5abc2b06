// A client: submits a request, says it again until it is certain, and waits for its end.
import { Unsendable, checked } from "./checked.js";
import { NOT_STORED, NotStored, last, pause, store } from "./connection.js";
import { requestId, sha256 } from "./ids.js";
import { FORM, otherForm } from "./log.js";

/** @typedef {import("./messages.js").Submit} Submit */
/** @typedef {import("./messages.js").RequestCompleted | import("./messages.js").RequestFailed | import("./messages.js").RequestExpired | import("./messages.js").RequestCancelled | import("./messages.js").RequestRefused} End */
/** @typedef {import("./messages.js").OpenQuestion} Question */

const LOOK_MS = 1_000;
const AGAIN_MS = 5_000;
const AGAIN_MOST_MS = 60_000;
const ENDS = new Set("request.completed request.failed request.expired request.cancelled request.refused".split(" "));

/** The submit was not taken up, and never will be; `code` says why. */
export class NotTakenUp extends Error {
  /** @param {{ code: string, detail: string }} error */
  constructor({ code, detail }) {
    super(`${code}: ${detail}`);
    this.name = "NotTakenUp";
    this.code = code;
  }
}
/** An event that this version cannot read lies where the answer was looked for. */
export class UnreadableEvent extends Error {}
/** The wait was given up; the request goes on, and can be waited for again. */
export class GaveUp extends Error {}

export class Client {
  #waiting = new Map();

  /** @param {import("./connection.js").NatsConnection} nc @param {string} name */
  constructor(nc, name) {
    this.nc = nc;
    this.name = name;
    nc.subscribe(`mesh.note.${name}.*`, { callback: (error, note) => void (error ?? this.#told(note)) });
  }

  /**
   * Return a request that is not submitted yet. Keep its `id` and `body`: with both, it can be gone on with after a crash.
   *
   * @param {string | Submit} what the text, or everything that a submit may have
   * @param {string} [id]
   */
  request(what, id = requestId(this.name)) {
    return new Request(this, id, checked("Submit", typeof what === "string" ? { text: what } : what));
  }

  /** Return a request that was submitted before. @param {string} id @param {string} body as it was submitted, to the byte */
  resume(id, body) {
    return new Request(this, id, body);
  }

  /** @param {string} request @param {(notice: any) => void} heard @returns {() => void} */
  listen(request, heard) {
    this.#waiting.set(request, heard);
    return () => this.#waiting.delete(request);
  }

  /** @param {import("@nats-io/transport-node").Msg} note */
  #told(note) {
    let notice;
    try {
      notice = note.data.length > 0 ? note.json() : { request: note.subject.split(".").at(-1) };
    } catch {
      return; // anybody's mistake may lie there
    }
    this.#waiting.get(notice?.request)?.(notice);
  }
}

export class Request {
  #client;

  /** @param {Client} client @param {string} id @param {string} body */
  constructor(client, id, body) {
    this.#client = client;
    this.id = id;
    this.body = body;
    this.digest = sha256(body);
  }

  /** Store the submit, and return once it is: from then on it will be decided. Waits where the queue is full. */
  async submit() {
    const { nc, name } = this.#client;
    await nc.flush(); // the server knows what we listen to before it is said
    for (;;) {
      try {
        return await store(nc, `mesh.prop.${name}.${this.id}`, this.body);
      } catch (error) {
        if (!(error instanceof NotStored) || error.errCode !== NOT_STORED) throw error;
        await pause(AGAIN_MS);
      }
    }
  }

  /**
   * Submit, wait for the end and return it. Notes may be lost and the server may die meanwhile.
   *
   * Nothing says at once that a submit was opened. So after 5 s without an event the same bytes are said again, less
   * and less often, until there is an event, or the notice `ended` says that they were taken up.
   *
   * Several agents may ask at the same time: `onQuestion` is called once with each question, however many wait.
   *
   * @param {{ onQuestion?: (question: Question) => unknown, signal?: AbortSignal }} [how] what replies to questions
   * @returns {Promise<End>}
   * @throws {NotTakenUp | UnreadableEvent | GaveUp}
   */
  async result({ onQuestion, signal } = {}) {
    const { nc, name } = this.#client;
    let wake = () => {};
    /** @type {{ code: string, detail: string } | undefined} */
    let rejected;
    let takenUp = false;
    const forget = this.#client.listen(this.id, (notice) => {
      if (notice.digest === this.digest && notice.error) rejected = notice.error;
      if (notice.digest === this.digest && notice.ended) takenUp = true;
      wake();
    });
    const stop = () => wake();
    signal?.addEventListener("abort", stop);
    let againMs = AGAIN_MS;
    let saidAt = Date.now();
    const heard = new Set();
    /** @type {unknown[]} */
    const broken = [];
    try {
      await this.submit();
      for (;;) {
        /** @type {Promise<void>} */
        const noted = new Promise((resolve) => (wake = resolve)); // before looking, so that no note is missed
        const event = this.#read(await last(nc, "LOG", `mesh.evt.${name}.${this.id}`));
        if (event !== undefined && ENDS.has(event.type)) {
          if (event.digest && event.digest !== this.digest) rejected = { code: "request_exists", detail: "the end is another submit's" };
          else return event;
        }
        if (rejected !== undefined) throw new NotTakenUp(rejected);
        if (signal?.aborted) throw new GaveUp(this.id);
        if (broken.length > 0) throw broken[0];
        takenUp ||= event !== undefined;
        if (event?.type === "turn.suspended" && onQuestion !== undefined) {
          for (const question of await this.questions()) {
            if (heard.has(question.n)) continue;
            heard.add(question.n);
            const replied = Promise.resolve(question).then(onQuestion).then((value) => this.reply(question, value));
            replied.catch((error) => (broken.push(error), wake()));
          }
        } else if (!takenUp && Date.now() - saidAt >= againMs) {
          await this.submit();
          saidAt = Date.now();
          againMs = Math.min(AGAIN_MOST_MS, againMs * 2);
        }
        await Promise.race([noted, pause(LOOK_MS)]);
      }
    } finally {
      forget();
      signal?.removeEventListener("abort", stop);
    }
  }

  /** Return what the request asks and has no reply yet, the oldest first. @returns {Promise<Question[]>} */
  async questions() {
    const { nc, name } = this.#client;
    return (await last(nc, "ASKS", `mesh.ask.${name}.${this.id}`))?.json().open ?? [];
  }

  /** Reply to a question. @param {Question} question @param {unknown} value */
  async reply({ n, turn, round }, value) {
    await this.#control("control.reply", { kind: "reply", id: `reply-${n}`, turn, round, value: value ?? null });
  }

  /** End the request. @param {string} [reason] */
  async cancel(reason = "") {
    await this.#control("control.cancel", { kind: "cancel", id: "cancel", reason });
  }

  /** @param {string} definition @param {object} message */
  async #control(definition, message) {
    await store(this.#client.nc, `mesh.ctl.${this.#client.name}.${this.id}`, checked(definition, message));
  }

  /** @param {import("@nats-io/transport-node").Msg | undefined} found @returns {any} */
  #read(found) {
    if (found === undefined) return undefined;
    let event;
    try {
      event = /** @type {any} */ (found.json());
    } catch {
      throw new UnreadableEvent(`the last event of ${this.id} is no JSON`);
    }
    if (event?.v !== FORM || typeof event.type !== "string") throw new UnreadableEvent(otherForm(`the last event of ${this.id}`, event?.v));
    return event;
  }
}

export { Unsendable };
