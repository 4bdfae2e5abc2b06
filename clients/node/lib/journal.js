// The journal of a turn: what a step came to is stored before it is used, and a step is written once, by one process.
import { NOT_STORED, NotStored, last, pause, store } from "./connection.js";
import { canonical, sha256 } from "./ids.js";

/** @typedef {import("./messages.js").Usage} Usage */
/**
 * @typedef {object} StepRecord
 * @property {1} v
 * @property {"call" | "intent" | "effect" | "fence"} kind
 * @property {string} [name]
 * @property {string} [digest] of the arguments
 * @property {string} nonce of the process that wrote it
 * @property {number} at UTC µs
 * @property {string} [key] of an effect
 * @property {unknown} [value]
 * @property {{ code: string, message: string }} [error] a recorded no
 * @property {Usage} [usage]
 * @property {unknown} [arguments] of a call, without those that are secret
 * @property {string[]} [secret] names of arguments that are kept out
 * @property {{ bytes: number, head: string }} [cut] instead of arguments of more than 16 KiB
 */
/**
 * @typedef {object} Whose
 * @property {import("./connection.js").NatsConnection} nc
 * @property {string} agent
 * @property {string} request
 * @property {import("./messages.js").Assignment} work
 * @property {string} nonce this process and delivery
 * @property {number} leaseMs
 */

const LARGEST_STEP = 512 * 1024;
const MOST_ARGUMENTS = 16 * 1024;
const HEAD = 2 * 1024;
const MOST_STEPS = 1_000;
const CRASHES = 5;
const FULL_MS = 1_000;

/** @typedef {{ arguments?: unknown, secret?: string[], cut?: { bytes: number, head: string } }} Given what a step shows of its arguments */
/** @typedef {{ effect?: "idempotent" | "once", secret?: string[], cost?: (value: any) => Usage }} How */

/** @param {unknown} args @param {string[]} [secret] names of arguments that are kept out @returns {Given} */
function given(args, secret = []) {
  const shown = secret.length > 0 ? Object.fromEntries(Object.entries(Object(args)).filter(([name]) => !secret.includes(name))) : args;
  const named = secret.length > 0 ? { secret } : {};
  const body = Buffer.from(JSON.stringify(shown) ?? "null");
  if (body.length <= MOST_ARGUMENTS) return { arguments: shown, ...named };
  return { ...named, cut: { bytes: body.length, head: body.subarray(0, HEAD).toString().replace(/\uFFFD$/, "") } };
}

/** What ends a round from beneath its code. No code catches it for good: the next call throws it again. */
export class Stopped extends Error {}
/** Another process goes on with this turn. `closed`: by a later round, so that this one is over. */
export class Fenced extends Stopped {
  /** @param {string} message @param {boolean} closed */
  constructor(message, closed) {
    super(message);
    this.closed = closed;
  }
}
/** An effect may or may not have happened: a person has to say. */
export class InDoubt extends Stopped {
  /** @param {{ step: string, action: string, key: string }} effect */
  constructor(effect) {
    super(`${effect.action} is in doubt`);
    this.effect = effect;
  }
}
/** The turn breaks, with a code for the guard. */
export class Broken extends Stopped {
  /** @param {string} code @param {string} message @param {{ permanent?: boolean, retryAfterS?: number }} [how] */
  constructor(code, message, { permanent = false, retryAfterS } = {}) {
    super(message);
    this.code = code;
    this.permanent = permanent;
    this.retryAfterS = retryAfterS;
  }
}
/** A tool's own no: an outcome like any other. It is recorded, and thrown again when the round runs again. */
export class ToolError extends Error {
  /** @param {string} code @param {string} message */
  constructor(code, message) {
    super(message);
    this.name = "ToolError";
    this.code = code;
  }
}

/** The steps of one round, those of the rounds before it beside them. Steps run one after the other. */
export class Journal {
  /** @param {Whose} whose */
  constructor(whose) {
    this.whose = whose;
    this.round = whose.work.round;
    this.turn = whose.work.continues ?? whose.work.turn;
    /** @type {Usage} */
    this.spent = { nano_dollars: 0, tokens: 0, model_calls: 0 };
    /** @type {Set<string>} */
    this.actions = new Set();
    this.steps = 0;
    /** @type {Stopped | undefined} what ended the round */
    this.stopped = undefined;
    this.attempt = -1;
    this.next = 0;
    /** @type {Map<string, StepRecord>} of this round, by name */
    this.own = new Map();
    /** @type {{ name: string, record: StepRecord }[]} of earlier rounds, not taken yet */
    this.earlier = [];
    /** @type {Map<string, number>} how many equal calls came before */
    this.equal = new Map();
    /** @type {Promise<unknown>} */
    this.queue = Promise.resolve();
    /** @type {Promise<void> | undefined} */
    this.opened = undefined;
  }

  /** Count a delivery that is not the first in; from the sixth that never came back, the turn kills its process. */
  async begin() {
    this.attempt = await this.#append("a");
    if (this.attempt - (await this.#count("b")) >= CRASHES) {
      throw new Broken("crash_loop", `${this.attempt} processes died of this round`, { permanent: true });
    }
  }

  /** Note that the round was given back in good order. */
  async giveBack() {
    if (this.attempt >= 0) await this.#append("b");
  }

  /**
   * Return what a call came to: as recorded, or run now and recorded.
   *
   * @param {string} name
   * @param {unknown} args
   * @param {(key: string) => unknown} run
   * @param {How} how
   */
  call(name, args, run, how) {
    const turn = this.queue.then(() => this.#call(name, args, run, how));
    this.queue = turn.catch(() => {});
    return turn;
  }

  /** @param {string} name @param {unknown} args @param {(key: string) => unknown} run @param {How} how */
  async #call(name, args, run, how) {
    if (this.stopped !== undefined) throw this.stopped;
    this.actions.add(name);
    try {
      await (this.opened ??= this.#open());
      const digest = sha256(canonical(args)).slice(0, 32);
      const shown = given(args, how.secret);
      const record = how.effect ? await this.#effect(name, digest, shown, run, how.effect) : await this.#read(name, digest, shown, run, how);
      if (record.error !== undefined) throw new ToolError(record.error.code, record.error.message);
      return record.value;
    } catch (error) {
      if (error instanceof Stopped) this.stopped = error;
      throw error;
    }
  }

  /** @param {string} name @param {string} digest @param {Given} shown @param {(key: string) => unknown} run @param {{ cost?: (value: any) => Usage }} how */
  async #read(name, digest, shown, run, { cost }) {
    const before = this.#take((record) => record.kind === "call" && record.name === name && record.digest === digest && !record.error);
    if (before !== undefined) return before.record; // an earlier round reported it
    const step = this.#place();
    const own = this.#standing(step, "call", name, digest);
    if (own !== undefined) return this.#counted(own);
    const produced = await this.#produced(run, "");
    const usage = cost !== undefined && produced.error === undefined ? { usage: cost(produced.value) } : {};
    return await this.#write(step, { ...this.#record("call", name, digest), ...shown, ...produced, ...usage });
  }

  /** @param {string} name @param {string} digest @param {Given} shown @param {(key: string) => unknown} run @param {"idempotent" | "once"} effect */
  async #effect(name, digest, shown, run, effect) {
    const nth = this.equal.get(name + digest) ?? 0;
    this.equal.set(name + digest, nth + 1); // the key: never of the round, and of two equal calls two
    const key = sha256(canonical([this.whose.request, this.turn, name, digest, nth])).slice(0, 32);
    const done = this.#take((record) => record.kind === "effect" && record.key === key);
    if (done !== undefined) return done.record;
    const doubted = this.#take((record) => record.kind === "intent" && record.key === key);
    const step = this.#place();
    const intent = this.#standing(step, "intent", name, digest);
    const result = this.own.get(`${step}d`);
    if (result !== undefined) return this.#counted(result);
    const where = intent !== undefined ? step : doubted?.name;
    const settled = where !== undefined ? this.#settled(where) : undefined;
    if (where !== undefined && settled === undefined && effect === "once") throw new InDoubt({ step: where, action: name, key });
    const since = Date.now();
    if (intent === undefined) await this.#write(step, { ...this.#record("intent", name, digest), ...shown, key });
    if (Date.now() - since > this.whose.leaseMs / 2) await this.requireHeld();
    const record = { ...this.#record("effect", name, digest), ...shown, key };
    if (settled?.settled === "done") return await this.#write(`${step}d`, { ...record, value: settled.reply });
    let produced;
    try {
      produced = await this.#produced(run, key);
    } catch (error) { // nobody knows how far it came
      if (effect === "once") throw new InDoubt({ step, action: name, key });
      throw error;
    }
    return await this.#write(`${step}d`, { ...record, ...produced });
  }

  /** Throw Fenced if a later delivery or round has taken over while this process was held up. */
  async requireHeld() {
    const later = await this.#get(`${this.round}-a${this.attempt + 1}`);
    if (later !== undefined) throw (this.stopped = new Fenced("another process took this round over", false));
  }

  // --- what stands ---------------------------------------------------------------------------------

  async #open() {
    for (const [name, record] of await this.#stored(this.round)) this.own.set(name, record);
    if ([...this.own.values()].some((record) => record.kind === "fence")) throw new Fenced("a later round closed this one", true);
    for (let round = 0; round < this.round; round++) await this.#close(round);
  }

  /** Write a fence at the first free place of an earlier round, and take in what stands beneath it. @param {number} round */
  async #close(round) {
    for (;;) {
      const stored = await this.#stored(round);
      const places = [...stored.keys()].filter((name) => !name.endsWith("d")).length;
      if (![...stored.values()].some((record) => record.kind === "fence")) {
        const put = await this.#put(`${round}-${places}`, this.#record("fence", "", ""));
        if (!put) continue; // a step of that round was faster: read again
      }
      for (const [name, record] of stored) {
        const hasResult = record.kind === "intent" && stored.has(`${name}d`);
        if (record.kind !== "fence" && !hasResult) this.earlier.push({ name, record });
      }
      return;
    }
  }

  /** Return a round's steps by name. @param {number} round */
  async #stored(round) {
    /** @type {Map<string, StepRecord>} */
    const stored = new Map();
    for (let place = 0; place < MOST_STEPS; place++) {
      const name = `${round}-${place}`;
      const record = await this.#get(name);
      if (record === undefined) break;
      stored.set(name, record);
      const result = record.kind === "intent" ? await this.#get(`${name}d`) : undefined;
      if (result !== undefined) stored.set(`${name}d`, result);
    }
    return stored;
  }

  /** @param {(record: StepRecord) => boolean} fits */
  #take(fits) {
    const at = this.earlier.findIndex(({ record }) => fits(record));
    return at < 0 ? undefined : this.earlier.splice(at, 1)[0];
  }

  #place() {
    if (this.next >= MOST_STEPS) throw new Broken("journal_full", `a round journals ${MOST_STEPS} steps at most`, { permanent: true });
    return `${this.round}-${this.next++}`;
  }

  /** Return what stands at a place. @param {string} step @param {string} kind @param {string} name @param {string} digest */
  #standing(step, kind, name, digest) {
    const record = this.own.get(step);
    if (record === undefined || (record.kind === kind && record.name === name && record.digest === digest)) return record;
    const withEffect = [...this.own.values(), ...this.earlier.map((each) => each.record)].some((each) => each.key);
    const said = `step ${step} was ${record.kind} ${record.name}, the code now calls ${name}`;
    throw new Broken("journal_mismatch", said, { permanent: withEffect });
  }

  /** @param {string} step */
  #settled(step) {
    return (this.whose.work.past ?? []).find((past) => past.how === "settled" && past.step === step);
  }

  // --- writing -------------------------------------------------------------------------------------

  /** @param {(key: string) => unknown} run @param {string} key @returns {Promise<{ value?: unknown, error?: { code: string, message: string } }>} */
  async #produced(run, key) {
    try {
      return { value: JSON.parse(JSON.stringify((await run(key)) ?? null)) };
    } catch (error) {
      if (error instanceof ToolError) return { error: { code: error.code, message: error.message } };
      throw error instanceof Stopped ? error : new Broken("bug", `it threw ${error instanceof Error ? error.name : typeof error}`);
    }
  }

  /** @param {StepRecord["kind"]} kind @param {string} name @param {string} digest @returns {StepRecord} */
  #record(kind, name, digest) {
    return { v: 1, kind, name, digest, nonce: this.whose.nonce, at: Date.now() * 1000 };
  }

  /** @param {string} step @param {StepRecord} record */
  async #write(step, record) {
    if (!(await this.#put(step, record))) throw new Fenced(`another process wrote step ${step}`, false);
    return record.kind === "intent" ? record : this.#counted(record);
  }

  /** @param {StepRecord} record */
  #counted(record) {
    this.steps++;
    for (const name of /** @type {const} */ (["nano_dollars", "tokens", "model_calls"])) {
      this.spent[name] = (this.spent[name] ?? 0) + (record.usage?.[name] ?? 0);
    }
    return record;
  }

  /** Store a step; false if another process has it. @param {string} name @param {StepRecord} record */
  async #put(name, record) {
    const body = JSON.stringify(record);
    if (Buffer.byteLength(body) > LARGEST_STEP + MOST_ARGUMENTS) {
      throw new Broken("journal_full", `${record.name}: a step has ${LARGEST_STEP} bytes at most`, { permanent: true });
    }
    for (;;) {
      try {
        await store(this.whose.nc, this.#subject(name), body);
        return true;
      } catch (error) {
        if (!(error instanceof NotStored) || error.errCode !== NOT_STORED) throw error;
        const there = await this.#get(name); // one code for two things: the step exists, or the stream is full
        if (there !== undefined) return there.nonce === record.nonce && there.at === record.at; // our own, said twice
        await pause(FULL_MS);
      }
    }
  }

  /** @param {string} kind */
  async #append(kind) {
    for (let k = await this.#count(kind); ; k++) {
      if (await this.#put(`${this.round}-${kind}${k}`, this.#record("call", "", ""))) return k;
    }
  }

  /** @param {string} kind */
  async #count(kind) {
    let k = 0;
    while ((await this.#get(`${this.round}-${kind}${k}`)) !== undefined) k++;
    return k;
  }

  /** @param {string} name @returns {Promise<StepRecord | undefined>} */
  async #get(name) {
    return (await last(this.whose.nc, `STEPS-${this.whose.agent}`, this.#subject(name)))?.json();
  }

  /** @param {string} name */
  #subject(name) {
    return `mesh.step.${this.whose.agent}.${this.whose.request}.${this.turn}.${name}`;
  }
}
