"""A fleet in one line, for tests that need one and do not care how it is written down."""

from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.ids import AgentName


def fleet_of(*agents: str | AgentEntry, human: bool = True) -> Fleet:
    """Return a fleet of these agents, with a client, an operator and a viewer.

    Args:
        agents: names, or whole entries; the first is the one to begin with.
        human: whether people can be asked.
    """
    entries = [AgentEntry(name=AgentName(each)) if isinstance(each, str) else each for each in agents]
    return Fleet(
        name="test",
        entry=entries[0].name,
        agents={entry.name: entry for entry in entries},
        clients=(AgentName("client"),),
        operators=(AgentName("ops"),),
        viewers=(AgentName("audit"),),
        human=human,
    )
