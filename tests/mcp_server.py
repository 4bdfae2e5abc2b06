"""An MCP server to test against, a process of its own: `python -m tests.mcp_server WORLD [--http]`.

WORLD is a folder: what its effects did, and what it was told of its environment, lies there. A file `gate`
in it lets the calls go on that wait. With --http it listens on a free port of the loopback, which it writes
to WORLD/port.
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

WORLD = Path(sys.argv[1])
READS = ToolAnnotations(read_only_hint=True)
OUT = os.dup(1)
"""The standard output itself: the SDK leads what a server prints to standard error."""
server = MCPServer("test-server")


class Point(BaseModel):
    x: int
    y: int


def done(what: str) -> None:
    """Have an effect."""
    with (WORLD / "done").open("a") as file:
        file.write(f"{what}\n")


async def wait_for(name: str) -> None:
    while not (WORLD / name).exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)


@server.tool(annotations=READS)
def add(a: int, b: Annotated[int, Field(le=100)] = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=READS)
def spell(word: Annotated[str, Field(pattern="^[a-z]+$", max_length=10)]) -> str:
    """Spell a word of small letters."""
    return "-".join(word)


@server.tool(annotations=READS)
def point(x: int, y: int) -> Point:
    """Return a point."""
    return Point(x=x, y=y)


@server.tool(annotations=READS, structured_output=False)
def say(text: str) -> str:
    """Return a text, and nothing structured."""
    return text


@server.tool(annotations=READS, structured_output=False)
def picture() -> Any:
    """Return a picture."""
    return ["a picture:", Image(data=b"\x89PNG\r\n", format="png")]


@server.tool(annotations=READS)
def environment() -> dict[str, str]:
    """Return this process's environment."""
    return dict(os.environ)


@server.tool(annotations=READS)
def pid() -> int:
    """Return this process's id."""
    return os.getpid()


@server.tool(annotations=READS)
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool(annotations=READS, structured_output=False)
def large(chars: int) -> str:
    """Return a long text."""
    return "x" * chars


@server.tool(annotations=READS)
async def meet(name: str, other: str) -> str:
    """Say that you are here, and wait for the other one."""
    (WORLD / name).touch()
    await wait_for(other)
    return name


@server.tool(annotations=READS)
async def hang() -> str:
    """Wait for the gate."""
    done("hanging")
    await wait_for("gate")
    return "let through"


@server.tool(annotations=READS)
def pour(piece: str, times: int) -> str:
    """Write a piece to the standard output many times, past the protocol, and note each time."""
    for n in range(times):
        rest = piece.encode()
        while rest:
            rest = rest[os.write(OUT, rest) :]
        (WORLD / "poured").write_text(str(n + 1))
    return "poured"


@server.tool(annotations=READS)
async def hang_and_pour(piece: str, times: int) -> str:
    """Give no answer, and pour once the gate is open: even if the call is cancelled."""

    def later() -> None:
        while not (WORLD / "gate").exists():
            time.sleep(0.01)
        pour(piece, times)

    threading.Thread(target=later, daemon=True).start()
    await asyncio.Event().wait()
    raise AssertionError


@server.tool(annotations=READS)
def die_reading() -> str:
    """End this process in the middle of a call."""
    os._exit(1)


@server.tool()
def write(text: str) -> str:
    """Write something down."""
    done(text)
    return f"wrote {text}"


@server.tool()
def write_and_die(text: str) -> str:
    """Write something down and end this process before it can say so."""
    done(text)
    os._exit(1)


@server.tool()
async def write_and_hang(text: str) -> str:
    """Write something down and say so when the gate is open."""
    done(text)
    await wait_for("gate")
    return f"wrote {text}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def pay(amount: int, idempotency_key: str) -> str:
    """Pay."""
    done(f"{amount} {idempotency_key}")
    return idempotency_key


@server.tool(name="odd.name", annotations=READS)
def odd() -> str:
    """Have a name that no model may use."""
    return "odd"


if __name__ == "__main__":
    if "--http" in sys.argv:
        import socket

        import uvicorn

        with socket.create_server(("127.0.0.1", 0)) as listening:
            (WORLD / "port.new").write_text(str(listening.getsockname()[1]))
            (WORLD / "port.new").rename(WORLD / "port")
            config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
            uvicorn.Server(config).run(sockets=[listening])
    else:
        server.run("stdio")
