"""The ring must send as much as the mesh does, so a sample that it cannot match is refused."""

import pytest

from bench.sizes import Sample
from mesh.bus.nats_protocol import Incoming

WHOLE = ("mesh.prop.app.r", "mesh.evt.a.r", "mesh.timer.at.r", "mesh.prop.a.r", "mesh.evt.app.r")


def sample(*subjects: str) -> Sample:
    found = Sample()
    for subject in subjects:
        found.take(Incoming(subject, "", b"head", b"body"))
    return found


def test_headers_and_body_are_counted_together() -> None:
    sizes = sample(*WHOLE).sizes()
    assert sizes.publishes == 5
    assert sizes.proposals == {"app": 8, "a": 8}


@pytest.mark.parametrize(
    "subjects",
    [
        pytest.param(WHOLE[:-1], id="no-answer"),
        pytest.param((*WHOLE, "mesh.timer.at.r"), id="two-timers"),
        pytest.param((*WHOLE, "mesh.step.a.r.t.0-1"), id="a-journalled-step"),
    ],
)
def test_what_the_ring_cannot_match_is_refused(subjects: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="not one whole request"):
        sample(*subjects).sizes()
