"""The port to a model: a prompt in, a reply out.

A `Prompt` holds what a model would be sent and nothing else. No turn, no handoff, no guard is in it, so
that whatever stands in for a model can know no more, and do no more, than a model could.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from protocol.wire.commands import Usage
from protocol.wire.prices import Tokens


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of the arguments, an object."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model asks for. Nothing of it has been checked."""

    id: str
    """Tells the calls of one transcript apart."""
    name: str
    arguments: Mapping[str, Any]
    unreadable: str = ""
    """Why the arguments are none, where what the model said for them cannot be read; they are empty then."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the model said in one reply."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    blocks: tuple[Mapping[str, Any], ...] = ()
    """The reply's own parts as its model made them, to go back to that model."""
    model: str = ""
    """Which model said it: a vendor binds a model's thoughts to it."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of one call, as text."""

    call: str
    """The call's id; empty for a remark on the reply as a whole."""
    name: str
    text: str
    """The result as JSON, or one sentence that says what is wrong."""
    is_error: bool = False


Exchange = Said | ToolResult


@dataclass(frozen=True, slots=True)
class Prompt:
    """All that a model sees."""

    agent: str
    """Who it speaks as."""
    instructions: str
    """The system text."""
    brief: str
    """The turn as text: what is wanted, what is known, what was refused."""
    tools: tuple[ToolSpec, ...] = ()
    """The only means to act, moves included."""
    transcript: tuple[Exchange, ...] = ()
    """This round's replies and results, in order."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply. Without calls, its text is the answer to the request."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    """What this one reply cost."""
    tokens: Tokens = field(default_factory=Tokens)
    """The same in detail, where the model tells."""
    stop: str = ""
    """Why the model stopped, in its own words; empty for one that does not say."""
    blocks: tuple[Mapping[str, Any], ...] = ()
    """The reply's parts as the model made them, for the rest of this round's conversation."""
    model: str = ""
    """Which model really replied."""
    asked: str = ""
    """Which one was asked, where the name of who replied does not tell."""


Hear = Callable[[str | None], None]
"""Told each piece of a reply's text as the model says it; None: what was said of it so far is void."""


class Model(Protocol):
    """Anything that replies.

    One whose vendor's SDK makes spans of its own says so by an attribute `makes_spans` that is true.
    """

    @property
    def mode(self) -> str:
        """What stands behind it, for people: `scripted`, a model's id, …"""
        ...

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        """Return one reply. Raises Retry when another attempt may help, Permanent when none can.

        Args:
            hear: told each piece of text as it comes, by a model that can; for display only.
        """
        ...
