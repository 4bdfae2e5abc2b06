"""What a listing of streams says of its servers, and of limits."""

import pytest

from mesh.bus.reader import Listing, Use
from mesh.ops.servers import behind_in


def listed(lag: int, *, last_seq: int = 100, messages: int = 100, offline: bool = False) -> Listing:
    """Return a listing of one stream on two servers, of which the second lacks the last `lag` changes."""
    state = {"last_seq": last_seq, "messages": messages}
    replica = {"name": "n2", "current": not lag, "lag": lag, "offline": offline}
    return Listing({"LOG": {"state": state, "cluster": {"replicas": [replica]}}}, frozenset())


@pytest.mark.parametrize(
    ("before", "now", "is_behind"),
    [
        (listed(0), listed(0), False),
        (listed(3), listed(0), False),
        (listed(1), listed(2, last_seq=150, messages=150), False),
        (listed(1), listed(9, messages=60), False),
        (listed(1), listed(1), True),
        (listed(5_000), listed(5_000, last_seq=150, messages=150), True),
        (listed(0), listed(0, offline=True), True),
    ],
    ids=["current", "caught-up", "busy", "drains", "stuck", "far-behind", "offline"],
)
def test_a_server_that_lacks_what_was_just_written_is_not_behind(
    before: Listing, now: Listing, is_behind: bool
) -> None:
    assert behind_in(before, now, ["LOG", "not there"]) == ({"n2"} if is_behind else set())


def test_a_stream_that_drops_its_oldest_is_never_full() -> None:
    state = {"bytes": 10, "messages": 10}
    streams = {
        name: {"config": {"discard": discard, "max_bytes": 10}, "state": state}
        for name, discard in (("MEM-c1", "old"), ("PROP-c1", "new"))
    }
    there = Listing(streams, frozenset())
    assert list(there.used("MEM-c1")) == []
    assert list(there.used("PROP-c1")) == [Use("max_bytes", 10, 10)]
