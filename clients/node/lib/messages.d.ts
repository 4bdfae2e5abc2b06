// Made by scripts/generate.mjs from the published schema. Do not edit.

export type AnyMessage =
  Submit | Proposal | Control | Event | Move | Assignment | Handoff | Fleet | Notice | Card | DeadLetter | Questions;
export type Proposal = ProposalMove | ProposalTurnFailed | ProposalEffectDoubted | ProposalClaim | ProposalPost;
export type Control =
  | ControlCancel
  | ControlFreeze
  | ControlThaw
  | ControlAssign
  | ControlResolve
  | ControlReply
  | ControlSettle
  | ControlForget;
export type Event =
  | RequestOpened
  | RequestRefused
  | HandoffAdmitted
  | MoveRefused
  | MoveDeferred
  | FactsWithheld
  | TurnFailed
  | TurnRetried
  | TurnSuspended
  | TurnResumed
  | EscalationRaised
  | EscalationAssigned
  | EscalationResolved
  | EffectDoubted
  | EffectSettled
  | RequestFrozen
  | RequestThawed
  | RequestCompleted
  | RequestFailed
  | RequestExpired
  | RequestCancelled
  | TurnDelegated
  | TaskOpened
  | TaskOffered
  | TaskDelivered
  | TaskFailed
  | TaskCancelled
  | FactsPosted;
/**
 * Stable names, in the order in which they are tried; the first is for submits, the last for claims.
 */
export type Rule =
  | "actions"
  | "agent_available"
  | "asks"
  | "budget"
  | "capable"
  | "claimed"
  | "constraints"
  | "cycle"
  | "depth"
  | "fan_out"
  | "hand_back"
  | "known_agent"
  | "known_move"
  | "known_policy"
  | "known_task"
  | "labels"
  | "levels"
  | "memory"
  | "must_carry"
  | "no_return"
  | "open_tasks"
  | "read_only"
  | "revisions"
  | "size";
export type Move =
  | MoveTransfer
  | MoveHandBack
  | MoveDelegate
  | MoveDeliver
  | MoveAsk
  | MoveEscalate
  | MoveComplete
  | MoveFail
  | MoveUnknown;
/**
 * A note with a body. Exactly one of `error` and `ended` is set.
 */
export type Notice = {
  [k: string]: unknown;
};

/**
 * A client's request, the plain JSON that anything that speaks NATS can publish.
 */
export interface Submit {
  text: string;
  to?: string | null;
  intent?: string | null;
  facts?: Fact[];
  artifacts?: Artifact[];
  constraints?: Constraints;
  policy?: string;
  conversation?: string | null;
  rerun_of?: string | null;
  forked_from?: ForkedFrom | null;
  v?: 1;
}
/**
 * One thing that is known. A handoff holds a key once; another value is a new fact.
 */
export interface Fact {
  key: string;
  value: unknown;
  labels?: string[];
}
/**
 * A reference to something large in the user's own store.
 */
export interface Artifact {
  name: string;
  uri: string;
  media_type?: string;
  digest?: string;
  size?: number | null;
  labels?: string[];
}
/**
 * Limits for the holder of the work. They only ever narrow on the way down.
 */
export interface Constraints {
  deadline?: number | null;
  max_resolution_time_s?: number | null;
  allowed_actions?: string[] | null;
  budget?: Budget | null;
  must_carry?: string[];
  read_only?: boolean;
}
/**
 * What may be spent. None puts no limit on that dimension; a rest may be negative.
 */
export interface Budget {
  nano_dollars?: number | null;
  tokens?: number | null;
  model_calls?: number | null;
}
/**
 * Where a fork leaves the request that it goes on from, and what its agents do about effects.
 */
export interface ForkedFrom {
  request: string;
  n: number;
  digest: string;
  effects?: "recorded" | "refuse" | "run";
  summary?: string;
  text_labels?: string[];
  journals?: {
    /**
     * @maxItems 1000
     */
    [k: string]: string[];
  };
}
/**
 * A turn asks for a move.
 */
export interface ProposalMove {
  kind: "move";
  turn: string;
  round: number;
  report?: Report;
  v?: 1;
  move:
    | MoveTransfer
    | MoveHandBack
    | MoveDelegate
    | MoveDeliver
    | MoveAsk
    | MoveEscalate
    | MoveComplete
    | MoveFail
    | MoveUnknown;
  oversized?: number;
}
/**
 * What a turn says it did. The guard accounts for it; the journal lets others check it.
 */
export interface Report {
  usage?: Usage;
  actions?: string[];
  steps?: number;
  digest?: string;
  prompt?: string;
  effects?: string[];
  version?: string;
  build?: string;
}
/**
 * What a turn spent, cumulative over its rounds.
 */
export interface Usage {
  nano_dollars?: number;
  tokens?: number;
  model_calls?: number;
  models?: {
    [k: string]: Metered;
  };
}
/**
 * What one model was used for, and what that cost.
 */
export interface Metered {
  input?: number;
  cache_read?: number;
  cache_write?: number;
  cache_write_1h?: number;
  output?: number;
  thinking?: number;
  calls?: number;
  nano_dollars?: number;
}
/**
 * Give the work to another agent. Brings only what is new; the guard carries the rest on.
 */
export interface MoveTransfer {
  move: "transfer";
  to_agent: string;
  summary: string;
  intent?: string | null;
  facts?: Fact[];
  artifacts?: Artifact[];
  drop?: string[];
  constraints?: Constraints;
  return_to?: string | null;
  no_return?: boolean;
}
/**
 * Give the work back along the path, with what was found out.
 */
export interface MoveHandBack {
  move: "hand_back";
  summary: string;
  to_agent?: string | null;
  facts?: Fact[];
  artifacts?: Artifact[];
  drop?: string[];
}
/**
 * Open tasks and wait for their join. Without tasks: wait for those that are open.
 */
export interface MoveDelegate {
  move: "delegate";
  tasks?: Task[];
  join?: ("all" | "any") | number;
  within_s?: number | null;
  cancel?: string[];
}
/**
 * One child piece of work, as its lead asks for it.
 */
export interface Task {
  name: string;
  summary: string;
  to_agent?: string | null;
  intent?: string | null;
  facts?: Fact[];
  artifacts?: Artifact[];
  carry?: string[] | null;
  uses?: string[];
  revises?: string;
  fallback?: boolean;
  constraints?: Constraints;
}
/**
 * End the task with its result.
 */
export interface MoveDeliver {
  move: "deliver";
  summary: string;
  facts?: Fact[];
  artifacts?: Artifact[];
  cancel_open?: boolean;
}
/**
 * Put a question to the client or to `human` and suspend the turn until the reply.
 */
export interface MoveAsk {
  move: "ask";
  to_agent: string;
  question: string;
  schema?: {} | null;
  expires_s?: number | null;
  digest?: string | null;
  action?: string;
}
/**
 * Give the work to a person.
 */
export interface MoveEscalate {
  move: "escalate";
  summary: string;
  facts?: Fact[];
}
/**
 * Answer the request.
 */
export interface MoveComplete {
  move: "complete";
  answer: unknown;
  cancel_open?: boolean;
  remember?: Fact[];
  remember_keys?: string[];
}
/**
 * Give the request up; of a task, the task alone.
 */
export interface MoveFail {
  move: "fail";
  reason: string;
  code?: string;
}
/**
 * A move that this build does not have; `known_move` refuses it by its name.
 */
export interface MoveUnknown {
  move: "?";
  name: string;
}
/**
 * A turn broke. Not the move `fail`, which gives the request up on purpose.
 */
export interface ProposalTurnFailed {
  kind: "turn_failed";
  turn: string;
  round: number;
  report?: Report;
  v?: 1;
  error: Failure;
}
/**
 * Why a turn broke. `message` is a safe sentence: no prompt, no model text, no repr.
 */
export interface Failure {
  code: string;
  message?: string;
  permanent?: boolean;
  retry_after_s?: number | null;
}
/**
 * A turn found an effect of its own in doubt, and stops until somebody settles it.
 */
export interface ProposalEffectDoubted {
  kind: "effect_doubted";
  turn: string;
  round: number;
  report?: Report;
  v?: 1;
  effect: Doubt;
}
/**
 * An effect that began, and of which no result is known: its process died, or its tool raised.
 */
export interface Doubt {
  step: string;
  action: string;
  key?: string;
  message?: string;
}
/**
 * An agent wants an offered task. `turn` is the offer, `round` 0.
 */
export interface ProposalClaim {
  kind: "claim";
  turn: string;
  round: number;
  report?: Report;
  v?: 1;
}
/**
 * A turn of a swarm puts facts on the board, and goes on.
 */
export interface ProposalPost {
  kind: "post";
  turn: string;
  round: number;
  report?: Report;
  v?: 1;
  post: number;
  facts: Fact[];
}
/**
 * End the request.
 */
export interface ControlCancel {
  kind: "cancel";
  id: string;
  by?: string;
  v?: 1;
  reason?: string;
}
/**
 * Stop admitting moves until a thaw.
 */
export interface ControlFreeze {
  kind: "freeze";
  id: string;
  by?: string;
  v?: 1;
  reason?: string;
}
/**
 * Go on admitting moves.
 */
export interface ControlThaw {
  kind: "thaw";
  id: string;
  by?: string;
  v?: 1;
  reason?: string;
}
/**
 * Say which person looks at an escalation.
 */
export interface ControlAssign {
  kind: "assign";
  id: string;
  by?: string;
  v?: 1;
  turn: string;
  to: string;
}
/**
 * End an escalation: give the work to an agent, take the turn up again, or answer.
 */
export interface ControlResolve {
  kind: "resolve";
  id: string;
  by?: string;
  v?: 1;
  turn: string;
  to?: string | null;
  again?: boolean;
  complete?: boolean;
  answer?: {
    [k: string]: unknown;
  };
  summary?: string;
  facts?: Fact[];
  budget?: Budget | null;
}
/**
 * Answer an ask.
 */
export interface ControlReply {
  kind: "reply";
  id: string;
  by?: string;
  v?: 1;
  turn: string;
  round: number;
  value?: {
    [k: string]: unknown;
  };
  reason?: string;
}
/**
 * Say what became of an effect in doubt.
 */
export interface ControlSettle {
  kind: "settle";
  id: string;
  by?: string;
  v?: 1;
  turn: string;
  round: number;
  outcome: "done" | "not_done";
  result?: {
    [k: string]: unknown;
  };
}
/**
 * Forget what a conversation remembers. It is about no request: it is sent to the whole mesh (`_`).
 */
export interface ControlForget {
  kind: "forget";
  id: string;
  by?: string;
  v?: 1;
  conversation: string;
  client?: string | null;
  keys?: string[];
}
/**
 * A submit was taken: the entry agent's first turn.
 */
export interface RequestOpened {
  type: "request.opened";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  client: string;
  work: Assignment;
  asked?: Constraints;
  digest: string;
  policy: Policy;
  policy_hash: string;
  deadline: number;
  prices?: {};
  conversation?: string | null;
  grounds: Grounds;
  rerun_of?: string | null;
  remembered?: string[];
  forked_from?: ForkedFrom | null;
}
/**
 * A span of time, both ends in UTC µs.
 */
export interface Span {
  since: number;
  until: number;
}
/**
 * What a holder gets to work with. An inbox event that has it opens a round of a turn.
 */
export interface Assignment {
  turn: string;
  round: number;
  handoff: Handoff;
  path: string[];
  depth: number;
  withheld?: Withheld | null;
  past?: RoundOutcome[];
  reported?: Report;
  continues?: string | null;
  prices?: {};
  topology?: string;
  task?: string;
  results?: TaskResult[];
  waiting?: string[];
  board?: Posted[];
  committed?: Usage;
  timeout_s?: number;
  forked_from?: ForkedFrom | null;
}
/**
 * The whole of what an agent is given, as the guard admitted it.
 */
export interface Handoff {
  move: string;
  from_agent: string;
  to_agent: string;
  parent?: string | null;
  summary: string;
  intent?: string | null;
  facts?: Fact[];
  artifacts?: Artifact[];
  constraints?: Constraints;
  return_to?: string | null;
  no_return?: boolean;
}
/**
 * What the reader of an event may not see: how much under which labels, and no more.
 */
export interface Withheld {
  labels: string[];
  facts?: number;
  artifacts?: number;
}
/**
 * How an earlier round of a turn ended: what its agent is told when it runs again.
 */
export interface RoundOutcome {
  round: number;
  how: "expired" | "failed" | "joined" | "refused" | "replied" | "resolved" | "settled";
  move?:
    | (
        | MoveTransfer
        | MoveHandBack
        | MoveDelegate
        | MoveDeliver
        | MoveAsk
        | MoveEscalate
        | MoveComplete
        | MoveFail
        | MoveUnknown
      )
    | null;
  refusal?: Refusal | null;
  failure?: Failure | null;
  reply?: {
    [k: string]: unknown;
  };
  settled?: ("done" | "not_done") | null;
  step?: string;
  by?: string;
  asked?: string;
  reason?: string;
}
/**
 * Why something was refused, for the agent that asked and for readers of the log.
 */
export interface Refusal {
  rule: Rule;
  detail: string;
  numbers?: {};
  hint?: string;
}
/**
 * What became of a task, as one reader sees it.
 */
export interface TaskResult {
  name: string;
  task: string;
  status: "cancelled" | "delivered" | "failed";
  agent: string;
  agents?: string[];
  summary?: string;
  facts?: Fact[];
  artifacts?: Artifact[];
  error?: TaskError | null;
  withheld?: Withheld | null;
  cost?: Usage;
  attempts?: number;
  duration_s?: number;
}
/**
 * Why a task failed: by codes, with where it began and what each level above made of it.
 */
export interface TaskError {
  code: string;
  message?: string;
  agent: string;
  attempts?: number;
  lineage?: string[];
  origin?: TaskError | null;
}
/**
 * One fact on the board of a swarm.
 */
export interface Posted {
  by: string;
  fact: Fact;
}
/**
 * All times in seconds. Counts are inclusive: `max_depth` hops are allowed, one more is not.
 */
export interface Policy {
  name?: string;
  version?: number;
  topology?: string;
  max_depth?: number;
  max_refusals?: number;
  max_retries?: number;
  retry_backoff_s?: number;
  retry_backoff_max_s?: number;
  max_asks?: number;
  max_escalations?: number;
  max_handoff_bytes?: number;
  deadline_s?: number;
  turn_timeout_s?: number;
  unattended_after_s?: number | null;
  escalation_sla_s?: number | null;
  on_budget?: "escalate" | "fail";
  budget?: Budget | null;
  max_levels?: number;
  max_open_tasks?: number;
  max_tasks?: number;
  max_revisions?: number;
  keep_back?: number;
  claim_within_s?: number;
  max_posts?: number;
  max_posted_bytes?: number;
}
/**
 * What a guard knew when it decided.
 */
export interface Grounds {
  fleet?: number;
  sender?: AgentEntry | null;
  target?: AgentEntry | null;
  human?: boolean;
  breaker?: "closed" | "half_open" | "open";
  breaker_since?: number | null;
  breaker_until?: number | null;
  peers?: string[];
  served?: boolean | null;
  longest_s?: number | null;
  served_since?: number | null;
  unbegun?: boolean;
  candidates?: Candidate[];
  removed?: boolean;
}
/**
 * One agent as verdicts see it. A field that is None puts no limit; an empty one allows nothing.
 */
export interface AgentEntry {
  name: string;
  clearance?: string[];
  intents?: string[] | null;
  actions?: string[] | null;
  to?: string[] | null;
  description?: string;
}
/**
 * An agent that a task could go to, or that an offer went to again, as a guard found it.
 */
export interface Candidate {
  entry: AgentEntry;
  breaker?: "closed" | "half_open" | "open";
  since?: number | null;
  until?: number | null;
  served?: boolean;
  took?: boolean;
}
/**
 * A well-formed submit that cannot be taken. No turn is ever opened.
 */
export interface RequestRefused {
  type: "request.refused";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  client: string;
  submit: Submit;
  refusal: Refusal;
  digest: string;
  policy?: Policy | null;
}
/**
 * The work moved on: the target's turn, and the end of the giver's.
 *
 *     `added` and `artifacts` name what the move brought. `work` has it, or the `facts.withheld` before.
 */
export interface HandoffAdmitted {
  type: "handoff.admitted";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  work: Assignment;
  asked?: Constraints;
  report?: Report;
  grounds: Grounds;
  added?: string[];
  dropped?: string[];
  artifacts?: string[];
}
/**
 * A move did not happen. Opens the holder's next round; without `work`, none was left.
 */
export interface MoveRefused {
  type: "move.refused";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  move:
    | MoveTransfer
    | MoveHandBack
    | MoveDelegate
    | MoveDeliver
    | MoveAsk
    | MoveEscalate
    | MoveComplete
    | MoveFail
    | MoveUnknown;
  refusal: Refusal;
  work?: Assignment | null;
  report?: Report;
  grounds: Grounds;
  oversized?: number;
}
/**
 * A proposal waits, whole, because its request is frozen.
 */
export interface MoveDeferred {
  type: "move.deferred";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  proposal: ProposalMove | ProposalTurnFailed | ProposalEffectDoubted | ProposalClaim | ProposalPost;
  sender: string;
}
/**
 * What the reader of the next event of this cause may not see, kept for those who may.
 *
 *     Of an event that gives work: what its holder is not cleared for. Of a question, and of an end that the
 *     client reads: what the verdict rested on and what the agent reported, which the event itself does not say.
 *     Before an answer `facts` are those that the conversation remembers from now on; before the refusal of a
 *     submit, those that it remembers.
 */
export interface FactsWithheld {
  type: "facts.withheld";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  target: string;
  facts?: Fact[];
  artifacts?: Artifact[];
  report?: Report;
  grounds?: Grounds | null;
  move?:
    | (
        | MoveTransfer
        | MoveHandBack
        | MoveDelegate
        | MoveDeliver
        | MoveAsk
        | MoveEscalate
        | MoveComplete
        | MoveFail
        | MoveUnknown
      )
    | null;
}
/**
 * A turn's round broke, by its own word or because its time ran out.
 */
export interface TurnFailed {
  type: "turn.failed";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  error: Failure;
  retry_at?: number | null;
  report?: Report;
  sender?: string | null;
  grounds?: Grounds | null;
}
/**
 * The holder's next round after a failure.
 */
export interface TurnRetried {
  type: "turn.retried";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  work: Assignment;
}
/**
 * A question to the client or to people; the turn waits without holding a lease.
 */
export interface TurnSuspended {
  type: "turn.suspended";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  ask: MoveAsk;
  expires_at: number;
}
/**
 * The holder's next round, with the reply or the fact that none came in time.
 */
export interface TurnResumed {
  type: "turn.resumed";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  work: Assignment;
  sender?: string | null;
  control?: string;
  grounds?: Grounds | null;
}
/**
 * A person is asked to take over: the human's turn, and the end of the holder's.
 */
export interface EscalationRaised {
  type: "escalation.raised";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  reason: string;
  work: Assignment;
  tier?: number;
  report?: Report;
  grounds?: Grounds | null;
  added?: string[];
}
/**
 * A person looks at an escalation.
 */
export interface EscalationAssigned {
  type: "escalation.assigned";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  person: string;
  by: string;
  sender: string;
  control: string;
}
/**
 * A person gave the work on: an agent gets a turn, in a fresh segment.
 */
export interface EscalationResolved {
  type: "escalation.resolved";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  work: Assignment;
  by: string;
  sender: string;
  control: string;
  summary?: string;
  again?: boolean;
  grounds: Grounds;
  budget?: Budget | null;
  added?: string[];
}
/**
 * An effect may or may not have happened; the turn waits until somebody says which.
 */
export interface EffectDoubted {
  type: "effect.doubted";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  effect: Doubt;
  report?: Report;
}
/**
 * Somebody said what became of it: the holder's next round.
 */
export interface EffectSettled {
  type: "effect.settled";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  work: Assignment;
  outcome: "done" | "not_done";
  result?: {
    [k: string]: unknown;
  };
  by?: string;
  sender: string;
  control: string;
}
/**
 * Moves are deferred from here on, until a thaw.
 */
export interface RequestFrozen {
  type: "request.frozen";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  by: string;
  sender: string;
  control: string;
  reason?: string;
  since?: number | null;
}
/**
 * Moves are judged again; a deferred one is judged first.
 */
export interface RequestThawed {
  type: "request.thawed";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  by: string;
  sender: string;
  control: string;
  reason?: string;
}
/**
 * The answer. Ends every turn; nothing follows.
 */
export interface RequestCompleted {
  type: "request.completed";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  answer: unknown;
  by?: string;
  sender: string;
  control?: string;
  digest?: string;
  conversation?: string | null;
  cancel_open?: boolean;
}
/**
 * Given up: by the move `fail`, or because nobody was left to ask.
 */
export interface RequestFailed {
  type: "request.failed";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  code: string;
  reason?: string;
  sender?: string | null;
  digest?: string;
}
/**
 * Its deadline passed.
 */
export interface RequestExpired {
  type: "request.expired";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  deadline: number;
  digest?: string;
}
/**
 * Its client or an operator called it off. Ends every turn; nothing follows.
 */
export interface RequestCancelled {
  type: "request.cancelled";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  by: string;
  sender: string;
  control: string;
  reason?: string;
  digest?: string;
}
/**
 * A lead's plan was admitted; its turn waits for the join. In nobody's inbox: it holds the whole plan.
 */
export interface TurnDelegated {
  type: "turn.delegated";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  tasks: PlannedTask[];
  join: ("all" | "any") | number;
  cancel?: string[];
  expires_at?: number | null;
  report?: Report;
  grounds: Grounds;
  within_s?: number | null;
}
/**
 * A task as it was admitted: as it was asked for, and what became of what was left open.
 */
export interface PlannedTask {
  task: Task;
  turn: string;
  agent?: string;
  why?: string;
  constraints?: Constraints;
  uses?: string[];
  revises?: string;
}
/**
 * A worker's turn. It says nothing of other tasks.
 */
export interface TaskOpened {
  type: "task.opened";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  lead: string;
  name: string;
  work: Assignment;
  grounds?: Grounds | null;
}
/**
 * A task for any agent that takes its intent, in the intent's inbox. It opens no turn; a claim does.
 *
 *     If nobody claims it in time, the same offer goes once to each agent that could, in the agent's own inbox.
 */
export interface TaskOffered {
  type: "task.offered";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  lead: string;
  name: string;
  intent: string;
  offer: Assignment;
  claim_by: number;
  grounds?: Grounds | null;
}
/**
 * A worker's result, whole, and the end of its turn. Its lead is told by `turn.resumed`.
 */
export interface TaskDelivered {
  type: "task.delivered";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  name: string;
  summary: string;
  facts?: Fact[];
  artifacts?: Artifact[];
  cancel_open?: boolean;
  sender: string;
  report?: Report;
  grounds: Grounds;
}
/**
 * A task came to nothing. Its lead goes on.
 */
export interface TaskFailed {
  type: "task.failed";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  name: string;
  error: TaskError;
  sender?: string | null;
  report?: Report;
  grounds?: Grounds | null;
}
/**
 * A task was called off: by its lead, or because its lead's turn is over.
 */
export interface TaskCancelled {
  type: "task.cancelled";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  name: string;
  why: "called_off" | "lead_ended";
  grounds?: Grounds | null;
}
/**
 * A turn put facts on the board; it goes on.
 */
export interface FactsPosted {
  type: "facts.posted";
  v: 2;
  id: string;
  request: string;
  n: number;
  at: number;
  cause: string;
  prev: string;
  salt: string;
  to: string;
  trace?: string;
  stood?: Span[];
  turn: string;
  round: number;
  post: number;
  facts: Fact[];
  sender: string;
  grounds: Grounds;
}
/**
 * Everybody with credentials, by role. `revision` is the stream sequence it was read at.
 */
export interface Fleet {
  name: string;
  entry: string;
  agents?: {
    [k: string]: AgentEntry;
  };
  clients?: string[];
  operators?: string[];
  viewers?: string[];
  human?: boolean;
  tiers?: string[];
  log_max_age_s?: number;
  lease_s?: number;
  guard_lease_s?: number;
  breaker?: BreakerRules;
  breakers?: {
    [k: string]: BreakerRules;
  };
  models?: {
    [k: string]: ModelLimits;
  };
  labels?: {
    [k: string]: string[];
  };
  revision?: number;
  artifacts?: string;
  memory_max_age_s?: number;
  quota?: Quota;
  quotas?: {
    [k: string]: Quota;
  };
  partitions?: number;
  lane?: boolean;
  swarms?: boolean;
}
/**
 * When a breaker opens and closes. All times in seconds.
 */
export interface BreakerRules {
  failures?: number;
  window_s?: number;
  open_s?: number;
  trial_s?: number;
}
/**
 * How fast each process may ask a model. Agents keep to it by themselves; nothing is judged by it.
 */
export interface ModelLimits {
  concurrency?: number | null;
  per_minute?: number | null;
}
/**
 * What a client, or an operator that submits, may have of the log. Each guard counts by itself.
 */
export interface Quota {
  open_requests?: number;
  mib_per_hour?: number;
}
/**
 * The last one published under an agent's name, by whichever instance started last.
 */
export interface Card {
  v?: 1;
  name: string;
  version: string;
  description?: string;
  prompt_version?: string;
  tools?: {}[];
  instance?: string;
  model?: string;
  no_rules?: boolean;
  forks?: boolean;
}
/**
 * A message that nobody could read or act on.
 */
export interface DeadLetter {
  v?: 1;
  at: number;
  by: string;
  code: string;
  detail: string;
  subject: string;
  sender?: string;
  request?: string;
  delivered?: number;
  headers?: {
    [k: string]: string;
  };
  data?: string;
  truncated?: boolean;
  stream_seq?: number;
  stored_at?: number;
}
/**
 * Every question of one request that waits for the same reader, as guards keep the list up to date.
 */
export interface Questions {
  v?: 1;
  n: number;
  open?: OpenQuestion[];
  more?: number;
}
/**
 * A question that waits for its reply.
 */
export interface OpenQuestion {
  n: number;
  turn: string;
  round: number;
  agent: string;
  ask: MoveAsk;
  expires_at: number;
}
