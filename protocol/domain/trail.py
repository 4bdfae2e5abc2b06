"""Path, frames and segment: where a request has been, for the rules to look back at.

`transfer` pushes a frame, `hand_back` pops down to one. A segment begins at the entry agent, or
where a person's resolution puts the request; path, depth, edges and seals are the segment's.
"""

import msgspec
from msgspec.structs import replace

from protocol.domain.layers import Load, Marks, followed
from protocol.wire.handoff import Budget, Constraints, Handoff
from protocol.wire.ids import AgentName


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One holder on the path, with what it was given to work under."""

    agent: AgentName
    giver: AgentName
    """Who gave it the work: a client, an agent, or `human`."""
    return_to: AgentName | None
    constraints: Constraints
    """Its own: absolute deadline and actions."""
    ceiling: Budget
    sealed: bool = False
    """It was opened with `no_return`: nothing goes back beneath it."""
    intent: str | None = None
    """What it was given the work for; a hand-back to it is for the same."""
    marks: Marks = frozenset()

    @classmethod
    def of(cls, handoff: Handoff, ceiling: Budget, marks: Marks) -> "Frame":
        """Return the frame of the turn that a handoff opens."""
        own = handoff.constraints
        return cls(
            agent=handoff.to_agent,
            giver=handoff.from_agent,
            return_to=handoff.return_to,
            constraints=Constraints(deadline=own.deadline, allowed_actions=own.allowed_actions),
            ceiling=ceiling,
            sealed=handoff.no_return,
            intent=handoff.intent,
            marks=marks,
        )


class Hop(msgspec.Struct, frozen=True, gc=False):
    """One admitted handoff between two agents."""

    n: int
    move: str
    from_agent: AgentName
    to_agent: AgentName


class Segment(msgspec.Struct, frozen=True, gc=False):
    """From entry, or from the last resolved escalation, to now."""

    path: tuple[Frame, ...]
    depth: int = 0
    edges: frozenset[tuple[str, str]] = frozenset()

    @property
    def top(self) -> Frame:
        return self.path[-1]

    @property
    def names(self) -> tuple[AgentName, ...]:
        return tuple(frame.agent for frame in self.path)

    @property
    def seal(self) -> int:
        """The lowest index of the path that may still be gone back to."""
        return max((index for index, frame in enumerate(self.path) if frame.sealed), default=0)

    def index(self, agent: str) -> int | None:
        """Return where on the path `agent` is; None if it is not."""
        return next((at for at, frame in enumerate(self.path) if frame.agent == agent), None)

    def resumed(self) -> int | None:
        """Return the index that a hand-back from the top goes to; None at frame 0."""
        if len(self.path) == 1:
            return None
        if self.top.return_to is not None:
            named = self.index(self.top.return_to)
            if named is not None and named < len(self.path) - 1:
                return named
        return len(self.path) - 2

    def push(self, frame: Frame) -> "Segment":
        return self._hop(self.top.agent, (*self.path, frame))

    def pop_to(self, index: int) -> "Segment":
        return self._hop(self.top.agent, self.path[: index + 1])

    def carried_on(self, before: Load, after: Load) -> "Segment":
        """Return the segment as it is once what is carried has changed: its frames' marks follow."""
        path = tuple(
            replace(frame, marks=followed(frame.marks, before, after)) if frame.marks else frame
            for frame in self.path
        )
        return replace(self, path=path)

    def _hop(self, from_agent: str, path: tuple[Frame, ...]) -> "Segment":
        return Segment(path, self.depth + 1, self.edges | {(from_agent, path[-1].agent)})
