"""A script: what happens to one request. The guard in memory plays it as it is written."""

from typing import Any, NamedTuple

from mesh.guard import messages
from mesh.testing import InMemoryGuard
from protocol.domain.admission import Rejected
from protocol.domain.steps import MeshFrozen, Outcome
from protocol.domain.turns import TurnState
from protocol.wire import codec
from protocol.wire.commands import (
    Control,
    Failure,
    MoveProposed,
    Proposal,
    Report,
    ReportFailure,
    Submit,
    Usage,
)
from protocol.wire.errors import Malformed
from protocol.wire.ids import TurnId
from protocol.wire.moves import Move

Said = Submit | Proposal | Control | bytes


class Message(NamedTuple):
    """Somebody says something."""

    sender: str
    body: bytes
    control: bool


class Pause(NamedTuple):
    """Time passes, and the timer fires."""

    seconds: float


class Frozen(NamedTuple):
    """The whole mesh is frozen, or thawed."""

    frozen: bool


class Deaf(NamedTuple):
    """An agent takes nothing out of its inbox any more, though it is served."""

    agent: str


class Script:
    """What happens to one request; the guard in memory plays it as it is written."""

    def __init__(self, guard: InMemoryGuard) -> None:
        self.guard = guard
        self.happened: list[Message | Pause | Frozen | Deaf] = []
        self.rejected: list[str] = []
        """Codes of what became a dead letter."""
        self._controls = 0

    def say(
        self, sender: str, message: Submit | Proposal | Control | bytes, *, control: bool = False
    ) -> None:
        body = message if isinstance(message, bytes) else codec.encode(message)
        self.happened.append(Message(sender, body, control))
        try:
            outcome = self._received(sender, body, control=control)
        except Malformed as error:
            self.rejected.append(error.code)
            return
        assert not isinstance(outcome, MeshFrozen)
        if isinstance(outcome, Rejected):
            self.rejected.append(outcome.code)

    def _received(self, sender: str, body: bytes, *, control: bool) -> Outcome:
        """Take a message as a guard takes it off its sender's queue. Raises Malformed."""
        guard = self.guard
        sent = messages.Sent(sender, guard.request, body, guard.fleet.role_of(sender))
        try:
            found = messages.control_of(sent) if control else messages.proposal_of(sent)
        except Malformed as error:
            if not control and (failure := messages.failure_of(sent, error)) is not None:
                guard.process(failure)
            raise
        return found if isinstance(found, Rejected) else guard.process(found)

    def submit(self, text: str = "help me", *, sender: str = "c1", **rest: Any) -> None:
        self.say(sender, Submit(text=text, **rest))

    def move(self, move: Move, *, tokens: int = 0, by: str | None = None) -> None:
        turn = self.guard.holder
        report = Report(usage=Usage(tokens=tokens))
        self.say(by or turn.agent, MoveProposed(turn=turn.id, round=turn.round, move=move, report=report))

    def working(self, task: str) -> TurnState:
        """Return the open turn of a task; that of the root for an empty name."""
        return next(turn for turn in self.guard.ledger.open.values() if turn.work.task == task)

    def of(
        self, task: str, move: Move, *, tokens: int = 0, by: str | None = None, oversized: int = 0
    ) -> None:
        """A task's turn asks for a move, or for more than can be sent: `oversized` bytes."""
        turn, report = self.working(task), Report(usage=Usage(tokens=tokens))
        said = MoveProposed(turn=turn.id, round=turn.round, move=move, report=report, oversized=oversized)
        self.say(by or turn.agent, said)

    def breaks(self, task: str, **error: Any) -> None:
        """A task's turn breaks."""
        turn = self.working(task)
        failure = Failure(**{"code": "bug", "message": "it broke", **error})
        self.say(turn.agent, ReportFailure(turn=turn.id, round=turn.round, error=failure))

    def fail(self, **error: Any) -> None:
        turn = self.guard.holder
        failure = Failure(**{"code": "bug", "message": "it broke", **error})
        self.say(turn.agent, ReportFailure(turn=turn.id, round=turn.round, error=failure))

    def control(self, kind: type[Control], sender: str = "op", **said: Any) -> None:
        self._controls += 1
        self.say(sender, kind(id=f"said-{self._controls}", **said), control=True)

    def wait(self, seconds: float) -> None:
        self.happened.append(Pause(seconds))
        self.guard.wait(seconds)

    def freeze_mesh(self, frozen: bool) -> None:
        self.happened.append(Frozen(frozen))
        self.guard.mesh_frozen = frozen

    def takes_nothing(self, agent: str) -> None:
        self.happened.append(Deaf(agent))
        self.guard.takers.discard(agent)

    @property
    def turn(self) -> TurnId:
        return self.guard.holder.id
