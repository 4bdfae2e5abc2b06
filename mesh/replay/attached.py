"""One turn's rounds, run again in this process: where breakpoints stop, and an author can look around.

Nothing else differs from a replay in processes of its own. Calls are answered by the record, and the code is
stopped where it reads something outside of it.
"""

import os
from collections.abc import Collection, Iterator, Sequence

from mesh.agent.definition import Agent
from mesh.agent.errors import Fenced, Superseded
from mesh.artifacts import ArtifactStore
from mesh.errors import NotFound
from mesh.replay.code import Recording, Replayed, Replayer
from mesh.replay.debugger import look_into, stopped_at
from mesh.replay.processes import hidden_variables
from mesh.replay.rounds import RecordedRound, rounds_of
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN


def forget_credentials() -> None:
    """Take what opens the bus, and the keys of vendors, out of this process's environment."""
    for name in hidden_variables():
        os.environ.pop(name, None)


def rounds_in(happened: Sequence[AnyEvent], bodies: Sequence[bytes], turn: str) -> Iterator[RecordedRound]:
    """Yield the rounds of one turn.

    Args:
        happened, bodies: a request's events, from the first on.
        turn: its id, the beginning of it, or the number of an event that one of its rounds came to.

    Raises NotFound for a turn that is not there, with those that are; BrokenLog.
    """
    agents = {work.handoff.to_agent for event in happened if (work := event.work) is not None} - {HUMAN}
    known = dict[str, str]()
    found = False
    for recorded in rounds_of(happened, bodies, agents):
        n = None if recorded.event is None else recorded.event.n
        known.setdefault(recorded.work.turn, f"{'none' if n is None else n} ({recorded.agent})")
        if turn == str(n) or (not turn.isdigit() and recorded.work.turn.startswith(turn)):
            found = True
            yield recorded
    if not found:
        there = "; ".join(f"{each}, event {of}" for each, of in known.items()) or "none"
        raise NotFound(f"there is no turn {turn!r} of an agent; those are: {there}")


async def replay_here(
    agent: Agent,
    recorded: RecordedRound,
    recording: Recording,
    *,
    allowed: Collection[str] = (),
    store: ArtifactStore | None = None,
    with_debugger: bool = False,
) -> Replayed:
    """Return what came of one round with an agent's code, whatever the agent is called.

    Args:
        allowed: kinds of what the code may read outside its record.
        store: of artifacts.
        with_debugger: stop at the handler's first line, and where an exception left the code.
    """
    name = recorded.agent
    replayer = Replayer({name: agent}, recording, allowed={name: allowed}, store=store)
    if not with_debugger:
        return await replayer.round(recorded)
    with stopped_at(agent):
        came = await replayer.round(recorded)
    error = None if replayer.ran is None else replayer.ran.error
    if error is not None and not isinstance(error, Fenced | Superseded):
        look_into(error)
    return came
