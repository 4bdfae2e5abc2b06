"""The gateway: requests of the mesh over HTTP, for programs that do not speak NATS.

    POST /requests                   submit; `Idempotency-Key` makes a repeated post the same request
    GET  /requests/ID                how it stands
    GET  /requests/ID/events         what happens, as server-sent events
    POST /requests/ID/reply|cancel   answer a question, give the request up
    GET  /openapi.json               all of it, for tools
    POST /a2a                        the same by A2A's JSON-RPC, for other agents (`mesh.gateway.a2a`)

A caller shows a bearer token. A token stands for one client of the fleet, whose key the gateway holds. It
needs the libraries of the page (`handoff-mesh[ui]`), and for A2A the extra `a2a`.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mesh.errors import MeshError
from protocol.wire.config import Fleet

_NEEDED = ("starlette", "uvicorn")
_NEEDED_FOR_A2A = ("a2a", "sse_starlette")

USUAL_PORT = 8430
TOKENS = "gateway-tokens.json"
"""File of the tokens, in the folder of what the gateway keeps."""


class GatewayNotInstalled(MeshError, code="gateway.not_installed"):
    """The gateway's libraries are not installed; the text tells how to get them."""


def require_installed(*, a2a: bool = False) -> None:
    """Raise GatewayNotInstalled unless the gateway's libraries, and with `a2a` A2A's, are installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise GatewayNotInstalled(f"the gateway needs {', '.join(missing)}: pip install 'handoff-mesh[ui]'")
    missing = [name for name in _NEEDED_FOR_A2A if a2a and find_spec(name) is None]
    if missing:
        raise GatewayNotInstalled(f"A2A needs {', '.join(missing)}: pip install 'handoff-mesh[a2a]'")


class GatewayLimits(NamedTuple):
    """Limits on what all callers together may use of the gateway. Those of one token are in its entry."""

    head_s: float = 10.0
    """For a complete request line and headers."""
    body_s: float = 30.0
    """For a body, once its headers have arrived."""
    stalled_s: float = 60.0
    """For a caller that does not read an answer."""
    waiting: int = 512
    """Connections without a complete request. If one more comes, the oldest is cut."""
    connections: int = 8_192
    """Connections in all; requests on others are answered with 503."""
    streams: int = 4_096
    """Open streams of events."""
    beat_s: float = 15.0
    """How long a stream is silent before it sends a comment, which shows whether the reader is gone."""


class HookPauses(NamedTuple):
    """How long a webhook's receiver is left alone (s)."""

    first_s: float = 1.0
    """After the first failure; it doubles with each."""
    longest_s: float = 300.0
    gone_s: float = 3_600.0
    """After an answer that the URL is gone for good (HTTP 410)."""


class A2AOptions(NamedTuple):
    """How the gateway is an agent for others."""

    fleet: Fleet
    """What its card says."""
    url: str = ""
    """Its address for others; empty for the one on which it listens."""


class GatewayOptions(NamedTuple):
    """How the gateway is served."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose."""
    store: Path = Path(".mesh")
    """The folder of what the gateway keeps: which key of a caller stands for which request."""
    tokens: Path = Path(".mesh") / TOKENS
    """The file of the tokens."""
    limits: GatewayLimits = GatewayLimits()
    pauses: HookPauses = HookPauses()
    a2a: A2AOptions | None = None
    """None: it does not answer A2A."""
