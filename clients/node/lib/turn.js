// What an agent's code sees of a round: what it was given, calls that are journaled, and the moves.
import { Broken, Journal } from "./journal.js";

/** @typedef {import("./messages.js").Move} Move */
/** @typedef {import("./messages.js").Assignment} Work */
/** @typedef {Record<string, unknown>} Facts */
/**
 * @typedef {object} Given what a handoff may bring besides its summary
 * @property {Facts} [facts] new or changed ones, by key
 * @property {Record<string, string[]>} [labels] of these facts, by key
 * @property {import("./messages.js").Artifact[]} [artifacts]
 * @property {string[]} [drop] keys that are not carried on
 */

/** The turn failed and is worth another round. */
export class Retry extends Broken {
  /** @param {string} message @param {{ afterS?: number }} [how] */
  constructor(message, { afterS } = {}) {
    super("retry", message, { retryAfterS: afterS });
  }
}
/** The turn failed, and no further round can help. */
export class Permanent extends Broken {
  /** @param {string} message */
  constructor(message) {
    super("permanent", message, { permanent: true });
  }
}

/** One round of one turn. */
export class Turn {
  #journal;
  #may;
  #lookFirst;
  /** @type {{ nano_dollars: number, tokens: number, model_calls: number }} */
  #spent = { nano_dollars: 0, tokens: 0, model_calls: 0 };

  /**
   * @param {string} request
   * @param {Work} work
   * @param {Journal} journal
   * @param {AbortSignal} signal
   * @param {string[] | undefined} actions of the fleet file; undefined: no limit
   * @param {() => Promise<void>} lookFirst throws if the turn is over
   */
  constructor(request, work, journal, signal, actions, lookFirst) {
    this.request = request;
    this.work = work;
    /** Aborted when the turn is over or goes on elsewhere: give it to whatever takes long. */
    this.signal = signal;
    this.handoff = work.handoff;
    /** @type {Facts} */
    this.facts = Object.fromEntries((work.handoff.facts ?? []).map((fact) => [fact.key, fact.value]));
    this.past = work.past ?? [];
    this.refusals = this.past.flatMap((past) => past.refusal ?? []);
    this.failures = this.past.flatMap((past) => past.failure ?? []);
    const newest = this.past.at(-1);
    /** The reply to what the round before asked; undefined if it did not ask, or none came. */
    this.reply = newest?.how === "replied" ? newest.reply : undefined;
    /** True if no reply came in time. */
    this.expired = newest?.how === "expired";
    this.#journal = journal;
    this.#lookFirst = lookFirst;
    const granted = work.handoff.constraints?.allowed_actions ?? undefined; // missing: no limit; empty: none
    this.#may = (/** @type {string} */ name) => [granted, actions].every((list) => list === undefined || list.includes(name));
  }

  /**
   * Call a tool: its result is journaled before it is used, and a round that runs again does not run it again.
   *
   * `run` gets the effect's idempotency key. With `effect`, "idempotent": after a crash it runs again under the
   * same key; "once": after a crash a person has to say what became of it. Throw a `ToolError` for a no that is an
   * outcome; anything else ends the round. A tool makes no calls of its own.
   *
   * @template T
   * @param {string} name
   * @param {unknown} args what makes two calls equal, as JSON
   * @param {(key: string) => T | Promise<T>} run
   * @param {{ effect?: "idempotent" | "once", cost?: (value: T) => import("./messages.js").Usage }} [how]
   * @returns {Promise<T>}
   */
  async call(name, args, run, how = {}) {
    if (!this.#may(name)) throw (this.#journal.stopped ??= new Broken("action_not_allowed", name, { permanent: true }));
    await this.#lookFirst();
    return /** @type {Promise<T>} */ (this.#journal.call(name, args, run, how));
  }

  /** Report a cost that no call records. @param {{ nano_dollars?: number, tokens?: number, model_calls?: number }} usage */
  spend(usage) {
    for (const name of /** @type {const} */ (["nano_dollars", "tokens", "model_calls"])) this.#spent[name] += usage[name] ?? 0;
  }

  /** Return what the turn did so far, over all its rounds. @returns {import("./messages.js").Report} */
  report() {
    const before = this.work.reported ?? {};
    /** @type {import("./messages.js").Usage} */
    const usage = { ...before.usage };
    for (const name of /** @type {const} */ (["nano_dollars", "tokens", "model_calls"])) {
      usage[name] = (usage[name] ?? 0) + (this.#journal.spent[name] ?? 0) + this.#spent[name];
    }
    const actions = [...new Set([...(before.actions ?? []), ...this.#journal.actions])].sort();
    return { ...before, usage, actions, steps: (before.steps ?? 0) + this.#journal.steps };
  }

  // --- moves ---------------------------------------------------------------------------------------

  /**
   * @param {string} to @param {string} summary
   * @param {Given & { intent?: string, constraints?: import("./messages.js").Constraints, return_to?: string, no_return?: boolean }} [given]
   * @returns {Move}
   */
  transfer(to, summary, { facts, labels, ...given } = {}) {
    return { move: "transfer", to_agent: to, summary, ...listed(facts, labels), ...given };
  }

  /** @param {string} summary @param {Given} [given] @returns {Move} */
  handBack(summary, { facts, labels, ...given } = {}) {
    return { move: "hand_back", summary, ...listed(facts, labels), ...given };
  }

  /** Ask the client, or `to`: "human". @param {string} question @param {{ to?: string, schema?: object, expires_s?: number }} [how] @returns {Move} */
  ask(question, { to = this.request.slice(0, this.request.lastIndexOf("_")), ...how } = {}) {
    return { move: "ask", to_agent: to, question, ...how };
  }

  /** @param {string} summary @param {Pick<Given, "facts" | "labels">} [given] @returns {Move} */
  escalate(summary, { facts, labels } = {}) {
    return { move: "escalate", summary, ...listed(facts, labels) };
  }

  /** @param {unknown} answer @returns {Move} */
  complete(answer) {
    return { move: "complete", answer };
  }

  /** @param {string} reason @returns {Move} */
  fail(reason) {
    return { move: "fail", reason };
  }
}

/** @param {Facts} [facts] @param {Record<string, string[]>} [labels] */
function listed(facts, labels = {}) {
  if (facts === undefined) return {};
  return { facts: Object.entries(facts).map(([key, value]) => ({ key, value, ...(labels[key] && { labels: labels[key] }) })) };
}
