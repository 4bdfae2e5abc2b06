// What an agent's code sees of a round: what it was given, calls that are journaled, and the moves.
import { Broken, Journal } from "./journal.js";

/** @typedef {import("./messages.js").Move} Move */
/** @typedef {import("./messages.js").Assignment} Work */
/** @typedef {Record<string, unknown>} Facts */
/** @typedef {import("./messages.js").Artifact} Artifact */
/** @typedef {import("./messages.js").Constraints} Constraints */
/** @typedef {import("./messages.js").Task} Task */
/** @typedef {import("./messages.js").TaskResult} TaskResult */
/**
 * @typedef {object} New facts that a move brings
 * @property {Facts} [facts] new or changed ones, by key
 * @property {Record<string, string[]>} [labels] of these facts, by key
 */
/**
 * @typedef {object} Given what a handoff may bring besides its summary
 * @property {Facts} [facts] new or changed ones, by key
 * @property {Record<string, string[]>} [labels] of these facts, by key
 * @property {Artifact[]} [artifacts]
 * @property {string[]} [drop] keys that are not carried on
 */
/**
 * @typedef {object} TaskFields what a task is
 * @property {string} summary one line: what is wanted and why
 * @property {string} [to] the agent that does it; without it, one that takes the `intent`
 * @property {string} [intent]
 * @property {Facts} [facts] only new ones, by key
 * @property {Record<string, string[]>} [labels] of these facts, by key
 * @property {Artifact[]} [artifacts]
 * @property {string[]} [carry] keys of facts and names of artifacts of this turn that it gets; without it, all
 * @property {string[]} [uses] earlier tasks whose results it is given
 * @property {string} [revises] the earlier task that it does again
 * @property {boolean} [fallback] true if another capable agent may get it, once, when it fails
 * @property {Constraints} [constraints]
 */

const HANDED = ["facts", "labels", "artifacts", "drop"];
/** Names of the arguments that a move takes by name: those of the Python package, and `labels`. @type {Record<string, string[]>} */
export const NAMES = {
  transfer: ["summary", "intent", ...HANDED, "constraints", "return_to", "no_return"],
  handBack: ["to", ...HANDED],
  task: ["summary", "to", "intent", "facts", "labels", "artifacts", "carry", "uses", "revises", "fallback", "constraints"],
  delegate: ["join", "within_s", "cancel"],
  deliver: ["facts", "labels", "artifacts", "cancel_open"],
  ask: ["of", "schema", "expires_s"],
  escalate: ["facts", "labels"],
  complete: ["cancel_open", "remember", "labels"],
  fail: ["code"],
};

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
    /** @type {Record<string, TaskResult>} by the task's name: what this task was given to use, then what its own tasks came to */
    this.results = Object.fromEntries((work.results ?? []).map((result) => [result.name, result]));
    /** Names of tasks that are still open. */
    this.waiting = work.waiting ?? [];
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
   * outcome; anything else ends the round. A tool makes no calls of its own. `secret` names arguments that no record
   * shows, such as a card's number; they count in what makes two calls equal.
   *
   * @template T
   * @param {string} name
   * @param {unknown} args what makes two calls equal, as JSON
   * @param {(key: string) => T | Promise<T>} run
   * @param {{ effect?: "idempotent" | "once", secret?: string[], cost?: (value: T) => import("./messages.js").Usage }} [how]
   * @returns {Promise<T>}
   */
  async call(name, args, run, how = {}) {
    requireNames(name, args, how.secret);
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

  // --- moves, with the names of the Python package ------------------------------------------------

  /**
   * Give the work to another agent.
   *
   * @param {string} to
   * @param {Given & { summary: string, intent?: string, constraints?: Constraints, return_to?: string, no_return?: boolean }} named
   * @returns {Move}
   */
  transfer(to, named) {
    const { facts, labels, ...given } = only("transfer", named);
    return { move: "transfer", to_agent: to, ...listed(facts, labels), ...given };
  }

  /** Give the work back along the path. @param {string} reason @param {Given & { to?: string }} [named] @returns {Move} */
  handBack(reason, named = {}) {
    const { facts, labels, to, ...given } = only("handBack", named);
    return { move: "hand_back", summary: reason, ...listed(facts, labels), ...(to !== undefined && { to_agent: to }), ...given };
  }

  /** Return a task for `delegate`; it is no move by itself. @param {string} name @param {TaskFields} named @returns {Task} */
  task(name, named) {
    const { facts, labels, to, ...given } = only("task", named);
    return { name, ...listed(facts, labels), ...(to !== undefined && { to_agent: to }), ...given };
  }

  /**
   * Open tasks and suspend the turn until their join; the code runs again with `results`.
   *
   * @param {Task[]} [tasks] none: wait for those that are open
   * @param {{ join?: "all" | "any" | number, within_s?: number, cancel?: string[] }} [named]
   * @returns {Move}
   */
  delegate(tasks = [], named = {}) {
    return { move: "delegate", tasks, ...only("delegate", named) };
  }

  /**
   * End this task with its result.
   *
   * @param {string} summary
   * @param {New & { artifacts?: Artifact[], cancel_open?: boolean }} [named]
   * @returns {Move}
   */
  deliver(summary, named = {}) {
    const { facts, labels, ...given } = only("deliver", named);
    return { move: "deliver", summary, ...listed(facts, labels), ...given };
  }

  /**
   * Ask the client, or `of`: "human"; the code runs again with `reply`.
   *
   * @param {string} question
   * @param {{ of?: string, schema?: object, expires_s?: number }} [named]
   * @returns {Move}
   */
  ask(question, named = {}) {
    const { of = this.request.slice(0, this.request.lastIndexOf("_")), ...how } = only("ask", named);
    return { move: "ask", to_agent: of, question, ...how };
  }

  /** Give the work to a person. @param {string} reason @param {New} [named] @returns {Move} */
  escalate(reason, named = {}) {
    const { facts, labels } = only("escalate", named);
    return { move: "escalate", summary: reason, ...listed(facts, labels) };
  }

  /**
   * Answer the request.
   *
   * @param {unknown} answer
   * @param {{ cancel_open?: boolean, remember?: Facts | string[], labels?: Record<string, string[]> }} [named]
   *   `remember`: what later requests of the conversation begin with: new facts by key, or keys of facts of this turn
   * @returns {Move}
   */
  complete(answer, named = {}) {
    const { remember, labels, ...given } = only("complete", named);
    const kept = Array.isArray(remember) ? { remember_keys: remember } : { remember: listed(remember, labels).facts };
    return { move: "complete", answer, ...given, ...(remember !== undefined && kept) };
  }

  /** Give the request up; of a task, the task alone. @param {string} reason @param {{ code?: string }} [named] @returns {Move} */
  fail(reason, named = {}) {
    return { move: "fail", reason, ...only("fail", named) };
  }
}

/** @param {string} tool @param {unknown} args @param {unknown} [secret] Throw unless `secret` is a list of arguments that there are. */
function requireNames(tool, args, secret) {
  const has = (/** @type {unknown} */ name) => typeof args === "object" && args !== null && typeof name === "string" && Object.hasOwn(args, name);
  if (secret === undefined || (Array.isArray(secret) && secret.every(has))) return;
  throw new TypeError(`secret is a list of arguments of ${tool}, not ${JSON.stringify(secret)}`);
}

/**
 * Return a move's named arguments. A name that the move does not have is an error: the guard would not see it.
 *
 * @template {object} T
 * @param {string} method
 * @param {T} named
 * @returns {T}
 */
function only(method, named) {
  const names = NAMES[method] ?? [];
  if (typeof named !== "object" || named === null) throw new TypeError(`turn.${method} takes these by name: { ${names.join(", ")} }`);
  const strange = Object.keys(named).find((name) => !names.includes(name));
  if (strange !== undefined) throw new TypeError(`turn.${method} has no argument ${JSON.stringify(strange)}; it has ${names.join(", ")}`);
  return named;
}

/** @param {Facts} [facts] @param {Record<string, string[]>} [labels] */
function listed(facts, labels = {}) {
  if (facts === undefined) return {};
  return { facts: Object.entries(facts).map(([key, value]) => ({ key, value, ...(labels[key] && { labels: labels[key] }) })) };
}
