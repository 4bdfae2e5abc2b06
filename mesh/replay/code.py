"""Replay of agents' code: what would it do today in the rounds that a log holds?

    record = Recording().take(steps_in(path))
    for bodies in load(path).values():
        for each in await Replayer({"billing": billing}, record).replay(bodies):
            print(each.result, each.difference)

Each round runs again from its record (`mesh.replay.again`), and its proposal goes through the guard's decider
(`mesh.replay.rounds`). Nothing is written, and no tool, model or person is asked. If a round's record lacks
what the code reads, the round is not judged: it is counted, with the reason.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import msgspec

from mesh.agent.definition import Agent
from mesh.artifacts import ArtifactStore
from mesh.errors import MeshError, OldForm
from mesh.replay.again import Ran, run_again, spent_by
from mesh.replay.differences import CodeDifference, compare_calls, compare_ending, wants_a_model
from mesh.replay.export import StoredStep
from mesh.replay.journal import Unusable
from mesh.replay.outside import Outside
from mesh.replay.rounds import RecordedRound, rounds_of
from protocol.wire import codec, subjects
from protocol.wire.commands import ReportFailure, Usage
from protocol.wire.config import Fleet
from protocol.wire.records import DONE, FENCE, MOST_ARGUMENTS_BYTES, Record

Result = Literal["same", "different", "not replayable"]

OLDER_FORM = "older form"
_NOT_ITS_CODES = frozenset({"crash_loop", "journal_mismatch", "course.changed"})
"""Failures of a round that met another version's journal, or ended its process."""
_MOST_STEP_BYTES = (512 << 10) + MOST_ARGUMENTS_BYTES


class Replayed(NamedTuple):
    """One round, and the outcome of running it again."""

    request: str
    agent: str
    turn: str
    round: int
    n: int | None
    """Number of the event that is the guard's answer; None if the round made no proposal."""
    version: str
    """Version of the agent that ran it; empty if the record does not say."""
    result: Result
    difference: CodeDifference | None = None
    why: str = ""
    """Why it is not replayable."""
    models: Usage | None = None
    """What its models cost: in the record, where one would have to be asked anew; now, where it was."""


class Recording:
    """What a log holds besides its events: steps of journals, fleets by revision, fixed parts of prompts.

    Args:
        fleets: by revision.
        fleet: used if the revision that a round began with is not kept; None: such a round is not replayable.
    """

    def __init__(self, *, fleets: Mapping[int, Fleet] | None = None, fleet: Fleet | None = None) -> None:
        self.fleets = dict(fleets or {})
        self.fleet = fleet
        self.prompts: Mapping[str, bytes] = {}
        self._journals: dict[tuple[str, str], dict[str, dict[str, bytes]]] = defaultdict(dict)
        """Stored steps: by request and agent, then by turn, then by name."""

    def take(self, stored: Iterable[StoredStep]) -> Self:
        """Add steps, prompts and revisions as they are stored; other documents are skipped."""
        for each in stored:
            kind, *rest = each.subject.removeprefix("mesh.").split(".")
            if kind == "step" and len(rest) == 4:
                agent, request, turn, name = rest
                self._journals[request, agent].setdefault(turn, {})[name] = each.data
            elif kind == "prompt" and rest:
                self.prompts = {**self.prompts, rest[-1]: each.data}
            elif each.subject == subjects.FLEET and (fleet := _fleet_in(each)) is not None:
                self.fleets[each.rev] = fleet
        return self

    @property
    def steps(self) -> list[StoredStep]:
        """All steps, as an export has them."""
        return [
            StoredStep(subjects.step(agent, request, turn, name), body)
            for (request, agent), journals in self._journals.items()
            for turn, steps in journals.items()
            for name, body in steps.items()
        ]

    def forget_steps(self) -> None:
        """Drop the journals: other requests have their own."""
        self._journals.clear()

    def fleet_of(self, revision: int) -> Fleet | None:
        """Return the fleet as it was at a revision; None if it is not kept."""
        return self.fleets.get(revision, self.fleet)

    def journal(self, request: str, agent: str, turn: str) -> Mapping[str, bytes]:
        """Return the stored steps of a turn, by name."""
        return self._journals.get((request, agent), {}).get(turn, {})


def _fleet_in(stored: StoredStep) -> Fleet | None:
    fleet = codec.readable(stored.data, Fleet)
    return None if fleet is None else msgspec.structs.replace(fleet, revision=stored.rev)


class Replayer:
    """Runs agents' code over requests, one after the other.

    Args:
        agents: their code, by name.
        record: the recording to run it over.
        allowed: by agent: kinds of what its code may read outside its record (`mesh.replay.outside.KINDS`).
        store: of artifacts.
        live: rounds (request, turn, round) whose models are asked what the record does not answer. If any are
            named, they alone are run.
        before: called before each round. What it returns, if anything, stands for what would come of it.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent],
        record: Recording,
        *,
        allowed: Mapping[str, Collection[str]] | None = None,
        store: ArtifactStore | None = None,
        live: Collection[tuple[str, str, int]] = (),
        before: Callable[[RecordedRound], Replayed | None] = lambda recorded: None,
    ) -> None:
        self._agents, self._record, self._store = dict(agents), record, store
        self._before, self._live = before, frozenset(live)
        self.ran: Ran | None = None
        """What the code came to where it ran last."""
        may = allowed or {}
        self._outside = {
            name: Outside(agent.handler, may.get(name, ())) for name, agent in self._agents.items()
        }

    async def replay(self, bodies: Sequence[bytes]) -> list[Replayed]:
        """Return the outcome of each round that these agents had in a request.

        Args:
            bodies: its stored events, from the first on.
        """
        found: list[Replayed] = []
        request, unreadable = "", ""
        try:
            happened = [codec.decode_event(body) for body in bodies]
            request = happened[0].request if happened else ""
            for recorded in rounds_of(happened, bodies, self._agents.keys()):
                if not self._live or _place(recorded) in self._live:
                    found += [await self.round(recorded)]
        except OldForm:
            unreadable = OLDER_FORM
        except MeshError as error:
            unreadable = f"its log cannot be read: {error}"
        if unreadable:
            found.append(
                Replayed(
                    request or _request_in(bodies), "", "", 0, None, "", "not replayable", why=unreadable
                )
            )
        return found

    async def round(self, recorded: RecordedRound) -> Replayed:
        """Return the outcome of one round."""
        known = self._before(recorded)
        if known is not None:
            return known
        found, why, models = None, recorded.why, None
        version = ""
        if not why:
            version = recorded.proposal.report.version
            found, why, models = await self._difference(recorded)
        return Replayed(
            request=recorded.request,
            agent=recorded.agent,
            turn=recorded.work.turn,
            round=recorded.work.round,
            n=None if recorded.event is None else recorded.event.n,
            version=version,
            result="not replayable" if why else "same" if found is None else "different",
            difference=None if why else found,
            why=why,
            models=models,
        )

    async def _difference(self, recorded: RecordedRound) -> tuple[CodeDifference | None, str, Usage | None]:
        """Return the first difference, or why there is none to be found, and what models cost."""
        work, was = recorded.work, recorded.proposal
        if not was.report.version:
            return None, OLDER_FORM, None
        if isinstance(was, ReportFailure) and was.error.code in _NOT_ITS_CODES:
            return None, f"it failed with {was.error.code}", None
        fleet = self._record.fleet_of(recorded.fleet)
        if fleet is None:
            return None, f"revision {recorded.fleet} of the fleet is not kept", None
        stored = self._record.journal(recorded.request, recorded.agent, work.journal_id)
        try:
            steps = _steps(stored, work.round)
        except Unusable as unusable:
            return None, str(unusable), None
        if any(record.kind in ("call", "intent") and _is_older(record) for record in steps.values()):
            return None, OLDER_FORM, None
        ran = await self._run(recorded, fleet, steps, resumed=False)
        found, why = self._judged(recorded, fleet, steps, ran)
        if found is not None and found.kind == "prompt" and _may_be_the_fleets(ran, steps, work.round):
            # What an agent knew of its peers then is recorded with the conversation, and nowhere else.
            ran = await self._run(recorded, fleet, steps, resumed=True)
            found, why = self._judged(recorded, fleet, steps, ran)
        if ran.asked is None and found is not None and wants_a_model(found):
            own = f"{work.round}-"
            replies = (each for name, each in steps.items() if each.kind == "model" and name.startswith(own))
            return found, why, spent_by(replies)
        return found, why, ran.asked

    async def _run(
        self, recorded: RecordedRound, fleet: Fleet, steps: Mapping[str, Record], *, resumed: bool
    ) -> Ran:
        name = recorded.agent
        self.ran = await run_again(
            self._agents[name],
            recorded.request,
            recorded.work,
            fleet,
            steps,
            outside=self._outside[name],
            resumed=resumed,
            store=self._store,
            live=_place(recorded) in self._live,
        )
        return self.ran

    def _judged(
        self, recorded: RecordedRound, fleet: Fleet, steps: Mapping[str, Record], ran: Ran
    ) -> tuple[CodeDifference | None, str]:
        was = recorded.proposal
        if isinstance(ran.error, Unusable):
            return None, str(ran.error)
        if ran.wanted is not None and not ran.left:
            if ran.steps < (expected := _expected(recorded)):
                return None, f"its journal is not whole: {ran.steps} of {expected} steps"
            if isinstance(was, ReportFailure):
                return None, f"what {ran.wanted.called} failed with is not recorded"
        if ran.wanted is not None and (there := _places(steps)) < (expected := _expected(recorded)):
            return None, f"its journal is not whole: {there} of {expected} steps"
        found = compare_calls(ran, self._record.prompts)
        return (compare_ending(recorded, ran, fleet) if found is None else found), ""


def _place(recorded: RecordedRound) -> tuple[str, str, int]:
    return recorded.request, recorded.work.turn, recorded.work.round


# --- a turn's journal -------------------------------------------------------------------------------------


def _steps(stored: Mapping[str, bytes], until: int) -> dict[str, Record]:
    """Return a journal up to the end of a round. Raises Unusable for an unreadable step."""
    found = {}
    for name, body in stored.items():
        round_, _, place = name.partition("-")
        if not (round_.isdigit() and place.removesuffix(DONE).isdigit()) or int(round_) > until:
            continue
        if len(body) > _MOST_STEP_BYTES:
            raise Unusable(f"step {name} is too large")
        record = codec.readable(body, Record)
        if record is None:
            raise Unusable(f"step {name} cannot be read")
        if record.v > 1:
            raise Unusable(f"step {name} is of a newer version")
        found[name] = record
    return found


def _is_older(record: Record) -> bool:
    return record.arguments is None and record.cut is None and not record.secret


def _expected(recorded: RecordedRound) -> int:
    """Return how many steps the round reported, including reused ones."""
    return recorded.proposal.report.steps - recorded.work.reported.steps


def _places(steps: Mapping[str, Record]) -> int:
    """Return how many steps a round could have reached: its own, and those that it could reuse."""
    return len({name.removesuffix(DONE) for name, record in steps.items() if record.kind != FENCE})


def _may_be_the_fleets(ran: Ran, steps: Mapping[str, Record], round_: int) -> bool:
    """Return True if a prompt may differ only since the agent knew more of its peers than the fleet file."""
    began = [record.began for name, record in steps.items() if record.began and name.startswith(f"{round_}-")]
    if ran.context is None or not began:
        return False
    now: dict[str, Any] = msgspec.to_builtins(ran.context)
    fleets = {name: now.get(name) for name in ("peers", "human", "forms")}
    return any({**then, **fleets} == now for then in began)


def _request_in(bodies: Sequence[bytes]) -> str:
    opening = codec.readable(bodies[0], dict[str, Any]) if bodies else None
    return str((opening or {}).get("request", ""))
