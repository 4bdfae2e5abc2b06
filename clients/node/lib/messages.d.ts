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
 * Stable names, in the order in which rules are checked: the first for submits, the last for claims.
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
  | "form"
  | "guardrail"
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
 * A client's request: plain JSON that any NATS client can publish.
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
  continue_with?: ("entry" | "last") | null;
  v?: 1;
}
/**
 * One known thing. A handoff holds each key once; a different value is a new fact.
 */
export interface Fact {
  key: string;
  value: unknown;
  labels?: string[];
}
/**
 * A reference to large data in the user's own store.
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
 * Limits for the holder of the work. They only ever get narrower on the way down.
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
 * What may be spent. None means no limit in that dimension. What is left of a budget may be negative.
 */
export interface Budget {
  nano_dollars?: number | null;
  tokens?: number | null;
  model_calls?: number | null;
}
/**
 * The request and the event that a fork continues from, and what its agents do about effects.
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
 * A turn's own account of what it did. The guard adds it up; the journal lets others check it.
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
  worked_ms?: number;
}
/**
 * A turn's spending, cumulative over its rounds.
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
 * How much a model was used, and what that cost.
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
 * Give the work to another agent. It contains only what is new; the guard carries the rest.
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
 * Give the work back along the path, with what was learned.
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
 * Open tasks and wait for their join. Without tasks, wait for those already open.
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
 * Give up the request; in a task, only the task.
 */
export interface MoveFail {
  move: "fail";
  reason: string;
  code?: string;
}
/**
 * A move that this build does not have. The rule `known_move` refuses it by name.
 */
export interface MoveUnknown {
  move: "?";
  name: string;
}
/**
 * A turn failed. This is not the move `fail`, which gives the request up on purpose.
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
 * A turn found one of its effects in doubt, and stops until a person settles it.
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
 * An effect that began but has no known result: its process died, or its tool raised.
 */
export interface Doubt {
  step: string;
  action: string;
  key?: string;
  message?: string;
}
/**
 * An agent claims an offered task. `turn` is the offer's id, `round` is 0.
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
 * Resume admitting moves.
 */
export interface ControlThaw {
  kind: "thaw";
  id: string;
  by?: string;
  v?: 1;
  reason?: string;
}
/**
 * Assign an escalation to a person.
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
 * Settle an effect in doubt: done or not done.
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
 * Forget what a conversation remembers. It concerns no request, so it is sent to the whole mesh (`_`).
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
 * A submit was admitted. Opens the entry agent's first turn.
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
  continue_with?: ("entry" | "last") | null;
  continued?: Continued | null;
}
/**
 * A span of time, both ends in UTC µs.
 */
export interface Span {
  since: number;
  until: number;
}
/**
 * What a holder gets to work with. An inbox event with an assignment opens a round of a turn.
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
  seal?: number;
}
/**
 * Everything an agent is given, as the guard admitted it.
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
 * What is hidden from the reader of an event: only the labels and the counts.
 */
export interface Withheld {
  labels: string[];
  facts?: number;
  artifacts?: number;
}
/**
 * How an earlier round of a turn ended. The agent gets it when the turn runs again.
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
 * Why a move or submit was refused, for the agent that asked and for readers of the log.
 */
export interface Refusal {
  rule: Rule;
  detail: string;
  numbers?: {};
  hint?: string;
}
/**
 * The outcome of a task, as one reader sees it.
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
 * Why a task failed: a code at each level, from where the failure began up to here.
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
 * A request's rules. All times are in seconds. Counts are inclusive: `max_depth` hops are allowed.
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
  human_deadline_s?: number | null;
  on_budget?: "escalate" | "fail";
  budget?: Budget | null;
  max_levels?: number;
  max_open_tasks?: number;
  max_tasks?: number;
  max_revisions?: number;
  keep_back?: number;
  claim_within_s?: number;
  continue_with?: "entry" | "last";
  tell_client?: ("path" | "usage")[];
  max_posts?: number;
  max_posted_bytes?: number;
  guardrails?: Guardrail[];
}
/**
 * One rule of an admin's own. Each condition that is set has to hold at each place.
 */
export interface Guardrail {
  name: string;
  looks_at: string[];
  pattern?: string | null;
  forbid_pattern?: string | null;
  max_bytes?: number | null;
  required?: boolean;
  forbid_labels?: string[];
  when?: GuardrailWhen;
  hint?: string;
}
/**
 * Which moves a guardrail is for. None: for all moves of agents.
 */
export interface GuardrailWhen {
  to?: string[] | null;
  moves?: string[] | null;
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
  form?: {} | null;
}
/**
 * One agent as verdicts see it. In a field, None means no limit; an empty value allows nothing.
 */
export interface AgentEntry {
  name: string;
  clearance?: string[];
  intents?: string[] | null;
  actions?: string[] | null;
  to?: string[] | null;
  description?: string;
  fallback?: string | null;
}
/**
 * An agent that a task could go to, or that got an offer again, as a guard found it.
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
 * How a request went on with the agent that spoke last in its conversation.
 */
export interface Continued {
  last: string;
  why?: Rule | null;
}
/**
 * A well-formed submit was refused. The request never has a turn.
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
 * The work moved on. Ends the giver's turn and opens the target's.
 *
 *     `added` and `artifacts` name what the move added. The values are in `work` or in the `facts.withheld`
 *     before.
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
  instead_of?: string | null;
}
/**
 * A move was refused. Opens the holder's next round; `work` is None if no round was left.
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
 * A proposal is kept whole, to be decided after a thaw, because its request is frozen.
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
 * What the reader of the next event of this cause may not see, kept for readers who may.
 *
 *     Before an event that gives work: what its holder is not cleared for. Before a question, or an end that the
 *     client reads: the grounds and the agent's report, which that event leaves out. Before an answer, `facts`
 *     are those that the conversation remembers from now on; before a submit's refusal, those that it remembers.
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
 * A round of a turn failed: its agent reported it, or its time ran out.
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
 * A turn asked the client or people a question. It waits for the reply without holding a lease.
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
  agent?: string | null;
  conversation?: string | null;
}
/**
 * A suspended turn goes on. Opens its next round, with the reply, the expiry, or the join's results.
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
 * A person is asked to take over. Ends the holder's turn and opens the human's.
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
 * An escalation was assigned to a person.
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
 * A person passed the work on: an agent gets a turn, in a new segment.
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
 * An effect may or may not have happened. The turn waits until a person settles it.
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
 * A person settled an effect in doubt. Opens the holder's next round.
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
 * The request is frozen: moves are deferred until a thaw.
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
 * The request is thawed: moves are decided again, a deferred one first.
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
 * The request has its answer. Ends every turn; no event follows.
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
  usage?: Usage | null;
  path?: string[];
}
/**
 * The request was given up: by the move `fail`, or because there was no other way left.
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
  usage?: Usage | null;
  path?: string[];
}
/**
 * The request's deadline passed, or the deadline of the person who had it.
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
  usage?: Usage | null;
  path?: string[];
  with_people?: boolean;
}
/**
 * The client or an operator cancelled the request. Ends every turn; no event follows.
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
  usage?: Usage | null;
  path?: string[];
}
/**
 * A lead's plan was admitted. Its turn waits for the join. In no inbox, since it holds the whole plan.
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
 * A task as admitted: as the lead asked for it, plus what the guard filled in.
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
 * A task was given to an agent. Opens the worker's turn; tells nothing about other tasks.
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
 * A task is offered to all agents that take its intent, in the intent's inbox. A claim opens the turn.
 *
 *     If it is not claimed in time, the same offer goes once to each capable agent, in that agent's own inbox.
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
 * A worker delivered its result, which is whole here. Ends its turn; `turn.resumed` tells the lead.
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
 * A task failed. Its lead goes on.
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
 * A task was cancelled: by its lead, or because its lead's turn is over.
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
 * A turn put facts on the board, and goes on.
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
 * All members with credentials, by role. `revision` is the stream sequence at which it was read.
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
  carries?: {
    [k: string]: {
      [k: string]: {};
    };
  };
  swarms?: boolean;
}
/**
 * When a breaker opens and closes. All times are in seconds.
 */
export interface BreakerRules {
  failures?: number;
  window_s?: number;
  open_s?: number;
  trial_s?: number;
}
/**
 * How fast each process may call a model. Agents comply by themselves; no verdict uses it.
 */
export interface ModelLimits {
  concurrency?: number | null;
  per_minute?: number | null;
}
/**
 * How much of the log a client, or a submitting operator, may use. Each guard counts by itself.
 */
export interface Quota {
  open_requests?: number;
  mib_per_hour?: number;
}
/**
 * What an agent tells about itself, as published by the instance that started last.
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
 * A message that could not be read or acted on.
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
 * The open questions of one request to the same reader. Guards keep the list up to date.
 */
export interface Questions {
  v?: 1;
  n: number;
  open?: OpenQuestion[];
  more?: number;
}
/**
 * A question that has no reply yet.
 */
export interface OpenQuestion {
  n: number;
  turn: string;
  round: number;
  agent: string;
  ask: MoveAsk;
  expires_at: number;
}
