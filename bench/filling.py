"""Filling a log: as many events as wanted, under the subjects and headers that a guard writes them with.

Compare-and-set is left out and acknowledgements are asked for now and then only; what is stored is the same.
Nobody else writes meanwhile, so the last acknowledgement tells whether everything arrived.
"""

import msgspec

from bench.stories import Line
from mesh.bus.connection import Bus
from protocol.wire.subjects import evt

_WINDOW = 2000
"""Messages between two acknowledgements: fewer than the server would drop."""


class _Head(msgspec.Struct, frozen=True):
    type: str
    id: str


_HEADS = msgspec.json.Decoder(_Head)


async def fill(admin: Bus, lines: list[Line], already: int = 0) -> None:
    """Append `lines` to a log of `already` events. Raises RuntimeError when some were lost."""
    for start in range(0, len(lines), _WINDOW):
        window = lines[start : start + _WINDOW]
        for line in window[:-1]:
            admin.send(evt(line.to, line.request), line.body, _headers(line))
        last = window[-1]
        ack = await admin.publish_durable(evt(last.to, last.request), last.body, _headers(last))
        if ack.seq != already + start + len(window):
            raise RuntimeError(f"the log holds {ack.seq} events, not {already + start + len(window)}")


def _headers(line: Line) -> dict[str, str]:
    head = _HEADS.decode(line.body)
    return {
        "Nats-Expected-Stream": "LOG",
        "Mesh-Type": head.type,
        "Mesh-Id": head.id,
    }
