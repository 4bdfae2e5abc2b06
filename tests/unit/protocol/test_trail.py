"""Path, frames and segment."""

import pytest

from protocol.domain.turns import Frame, Segment
from protocol.wire.handoff import Budget, Constraints
from protocol.wire.ids import AgentName


def frame(name: str, *, return_to: str | None = None, sealed: bool = False) -> Frame:
    named = None if return_to is None else AgentName(return_to)
    return Frame(AgentName(name), AgentName("x"), named, Constraints(), Budget(), sealed)


def walked(*frames: Frame) -> Segment:
    segment = Segment(frames[:1])
    for each in frames[1:]:
        segment = segment.push(each)
    return segment


def test_pushing_and_popping_count_as_hops_and_leave_edges() -> None:
    segment = walked(frame("a"), frame("b"), frame("c"))
    assert (segment.names, segment.depth, segment.top.agent) == (("a", "b", "c"), 2, "c")
    assert segment.edges == {("a", "b"), ("b", "c")}
    popped = segment.pop_to(0)
    assert (popped.names, popped.depth) == (("a",), 3)
    assert popped.edges == segment.edges | {("c", "a")}
    assert segment.names == ("a", "b", "c")  # a segment is a value


def test_an_agent_is_found_by_its_place_on_the_path() -> None:
    segment = walked(frame("a"), frame("b"))
    assert [segment.index(name) for name in ("a", "b", "c")] == [0, 1, None]


@pytest.mark.parametrize(
    ("top", "beneath"),
    [
        (frame("d"), 2),
        (frame("d", return_to="a"), 0),
        (frame("d", return_to="b"), 1),
        (frame("d", return_to="d"), 2),
        (frame("d", return_to="z"), 2),
    ],
)
def test_a_hand_back_resumes_return_to_or_the_frame_beneath(top: Frame, beneath: int) -> None:
    assert walked(frame("a"), frame("b"), frame("c"), top).resumed() == beneath


def test_nothing_is_beneath_the_first_frame() -> None:
    assert walked(frame("a", return_to="a")).resumed() is None


@pytest.mark.parametrize(
    ("sealed", "seal"), [((), 0), ((0,), 0), ((1,), 1), ((2,), 2), ((1, 2), 2), ((0, 1), 1)]
)
def test_the_highest_seal_is_the_one_that_counts(sealed: tuple[int, ...], seal: int) -> None:
    frames = [frame(name, sealed=at in sealed) for at, name in enumerate("abc")]
    assert walked(*frames).seal == seal
