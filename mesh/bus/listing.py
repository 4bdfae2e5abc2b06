"""What the server knows of streams: configuration, state and replicas, from `STREAM.LIST`.

`STREAM.INFO` has the same and, when asked, every subject of a stream: seconds of the server's work for a few
bytes. Permissions cannot tell the two apart, so viewers and operators have the right to list alone.
"""

from typing import Any, NamedTuple

from mesh.bus.connection import Bus
from mesh.errors import ApiCode, ApiError, NoResponders
from protocol.wire.subjects import STORED_IN

_VERB = "STREAM.LIST"
_TIMEOUT_S = 10.0
"""The servers of a cluster wait 4 s for a stream without a leader before they answer."""


class Listing(NamedTuple):
    """Streams by name, and the names of those without a leader, of which nothing is known."""

    streams: dict[str, dict[str, Any]]
    leaderless: frozenset[str]

    def info(self, stream: str) -> dict[str, Any]:
        """Return what is known of a stream.

        Raises NoResponders if it has no leader, and ApiError if it is not there.
        """
        if stream in self.streams:
            return self.streams[stream]
        if stream in self.leaderless:
            raise NoResponders(f"the stream {stream} has no leader at the moment")
        raise ApiError(_VERB, ApiCode.STREAM_NOT_FOUND, f"stream {stream} not found")


async def listing(bus: Bus, subject: str | None = None) -> Listing:
    """Return all streams; with `subject` those that store it. Raises BusError."""
    streams, leaderless = dict[str, dict[str, Any]](), set[str]()
    asked: dict[str, Any] = {} if subject is None else {"subject": subject}
    offset, total = 0, 1
    while offset < total:
        page = await _page(bus, {**asked, "offset": offset})
        found, missing = page.get("streams") or [], page.get("missing") or []
        streams |= {each["config"]["name"]: each for each in found}
        leaderless |= set(missing)
        offset, total = offset + len(found) + len(missing), int(page["total"]) if found or missing else 0
    return Listing(streams, frozenset(leaderless - streams.keys()))


async def _page(bus: Bus, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return await bus.api(_VERB, asked, timeout_s=_TIMEOUT_S)
    except ApiError as error:
        if error.err_code != ApiCode.CLUSTER_NOT_AVAILABLE:
            raise
        raise NoResponders("the servers of the bus have no leader at the moment") from None


async def stream_info(bus: Bus, stream: str) -> dict[str, Any]:
    """Return what is known of one stream. Raises as `Listing.info`, and BusError."""
    subjects = STORED_IN.get(stream)
    return (await listing(bus, subjects[0] if subjects else None)).info(stream)


async def bounds(bus: Bus, stream: str) -> tuple[int, int]:
    """Return the first and the last sequence number of a stream; the first is the larger when it is empty.

    Raises as `stream_info`.
    """
    state = (await stream_info(bus, stream))["state"]
    return max(1, int(state["first_seq"])), int(state["last_seq"])  # the server says 0 before anything came
