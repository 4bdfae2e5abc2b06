"""One call of a tool, and what is known when it goes wrong.

Four things can be known: the server said no; it never heard of the call; it ran the tool and the result
is of no use; or nothing. Of a tool that only reads, nothing is lost in any case. Of an effect the last one
is a doubt, which the journal takes up: `EffectUnknown`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mesh.agent.failures import EffectUnknown
from mesh.agent.tools import short
from mesh.mcp.failures import (
    McpDown,
    McpNotBegun,
    McpRefused,
    McpTimedOut,
    McpUnreached,
    McpUnreadable,
    McpUnusable,
)
from mesh.mcp.link import Link
from mesh.mcp.results import value_of
from mesh.mcp.wires import BROKEN, DENIED, UNREACHED

if TYPE_CHECKING:
    from mcp.shared.exceptions import MCPError

    from mesh.agent.tools import Effect

_CONNECTION_CLOSED = -32_000
_PARSE_ERROR = -32_700
_INVALID_REQUEST = -32_600
_NOT_BEGUN = frozenset(
    {
        -32_601,  # no such tool, or no such method
        -32_602,  # wrong arguments
        -32_020,  # headers that do not match the request
        -32_021,  # the server wants something that we do not offer
        -32_022,  # another version of the protocol
        -32_042,  # it wants somebody to open a page first
    }
)
"""Codes with which a server says no before it does anything."""
_NOBODY_ANSWERED = frozenset({_CONNECTION_CLOSED, BROKEN, _PARSE_ERROR, _INVALID_REQUEST})
"""Codes that the SDK or `mesh.mcp.wires` give where no answer came, or none that could be read."""
_SESSION_GONE = "Session terminated"
"""What the SDK says where a server does not know our session any more, and has looked at nothing else."""


class Called(NamedTuple):
    """Which tool is called, and how."""

    name: str
    """Ours."""
    remote: str
    """The server's."""
    effect: "Effect | None"
    timeout_s: float
    max_bytes: int


async def call(link: Callable[[], Link], called: Called, arguments: Mapping[str, Any]) -> Any:
    """Call a tool and return its result's value.

    Args:
        link: gives the connection, a fresh one if need be.

    Raises the errors of `mesh.mcp.failures`, and EffectUnknown.
    """
    name = called.name
    try:
        connection = link()
        await connection.ready()
    except (McpDown, McpUnusable) as down:
        if called.effect is None:
            raise
        raise _not_begun(called, str(down)) from down
    from mcp.shared.exceptions import MCPError

    try:
        async with asyncio.timeout(called.timeout_s):
            result = await connection.call(called.remote, dict(arguments))
    except TimeoutError as late:
        why = f"{name} did not answer within {called.timeout_s:g} s"
        if called.effect is None:
            raise McpTimedOut(f"{why}; it changes nothing") from late
        raise EffectUnknown(why) from late
    except MCPError as error:
        if error.code in (_CONNECTION_CLOSED, _INVALID_REQUEST):
            connection.leave()
        raise _meaning(called, error) from error
    except RuntimeError as wrong:  # the SDK has checked it against the tool's own output schema
        raise McpUnreadable(f"{name} ran, but its result is not what it says it returns") from wrong
    except Exception as broken:
        if called.effect is not None:
            raise EffectUnknown(f"{name} answered with what is no result") from broken
        raise McpUnreadable(f"{name} answered with what is no result: {type(broken).__name__}") from broken
    return value_of(name, result, called.max_bytes)


def _meaning(called: Called, error: "MCPError") -> Exception:
    """Return what an error instead of a result comes to."""
    name, code, text = called.name, error.code, short(error.message)
    if code in _NOT_BEGUN:
        return McpNotBegun(f"{name}: {text}")
    gone = code == _INVALID_REQUEST and error.message == _SESSION_GONE
    if code in (UNREACHED, DENIED) or gone:
        if called.effect is not None:
            return _not_begun(called, text)
        return (McpUnusable if code == DENIED else McpDown)(f"the server of {name} cannot be used: {text}")
    if called.effect is not None:
        return EffectUnknown(f"{name}: {text}")
    if code in _NOBODY_ANSWERED:
        return McpDown(f"the server of {name} did not answer: {text}")
    return McpRefused(f"{name}: {text}")


def _not_begun(called: Called, why: str) -> McpUnreached:
    return McpUnreached(f"{called.name} was not called, and nothing was done: {why}")
