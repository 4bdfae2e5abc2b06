"""What becomes of measured numbers, and what they are measured on."""

from xml.etree import ElementTree

import msgspec
import pytest

from bench.command import FULL
from bench.figures import (
    Curve,
    Figure,
    Point,
    Report,
    Target,
    Use,
    as_svg,
    as_text,
    percentile,
    ratio,
    spread,
)
from bench.growth import fleet_of
from bench.load import Sample
from bench.reading import Folding
from bench.stories import PLOTS, fresh_id, history, originals, play
from mesh.bus.nats_protocol import Incoming
from protocol.domain import hash_chain
from protocol.domain.ledger import fold_bodies
from protocol.wire import codec
from protocol.wire.events import FactsWithheld, MoveRefused

SVG = "{http://www.w3.org/2000/svg}"


def test_the_largest_fleet_that_grows_promises_no_more_than_a_small_disk_has() -> None:
    agents = FULL.growth.agents[-1]
    limits = fleet_of(agents).storage.limits
    assert agents * (limits.bytes + limits.step_bytes) < 16 << 30


def test_a_ratio_is_taken_round_by_round() -> None:
    slow_and_fast = ratio([10.0, 1.0, 3.0], [5.0, 0.5, 1.0])
    assert slow_and_fast == spread([2.0, 2.0, 3.0])


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([7.0], 0.0) == 7.0


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        pytest.param(Target("at most", 1.5), 1.5, True, id="at-most-is-inclusive"),
        pytest.param(Target("at most", 1.5), 1.6, False, id="too-much"),
        pytest.param(Target("at least", 0.6), 0.6, True, id="at-least-is-inclusive"),
        pytest.param(Target("at least", 0.6), 0.5, False, id="too-little"),
        pytest.param(None, 0.5, None, id="no-target"),
    ],
)
def test_a_target_without_a_yardstick_is_about_the_figure(
    target: Target | None, value: float, met: bool | None
) -> None:
    assert Figure("speed", "1/s", spread([value]), target=target).met is met


def test_a_target_with_a_yardstick_is_about_the_ratio() -> None:
    figure = Figure("speed", "1/s", spread([30.0]), spread([100.0]), spread([0.3]), Target("at least", 0.6))
    assert figure.met is False


def test_the_text_names_a_missed_target_and_the_machine() -> None:
    missed = Figure("speed", "1/s", spread([1234.5]), target=Target("at least", 2000))
    text = as_text(Report({"cores": "2"}, [missed], [Use("mesh", "guard", 1.5, 0.1)], ["a note"]))
    assert "MISSED" in text
    assert "1,234" in text
    assert "cores: 2" in text
    assert text.endswith("a note")


def test_the_plot_has_a_panel_for_each_axis_a_line_for_each_member_and_dark_colours() -> None:
    curves = [
        Curve(axis, member, [Point(10, spread([1.0])), Point(1000, spread([0.9, 1.5, 2.1]))])
        for axis in ("facts <in a handoff>", "agents")
        for member in ("guard", "server")
    ]
    text = as_svg(curves)
    root = ElementTree.fromstring(text)
    said = [element.text for element in root.iter(f"{SVG}text")]
    assert said.count("facts <in a handoff>") == said.count("agents") == 1
    assert said.count("10") == said.count("1,000") == 2
    lines = [element.attrib["points"].split() for element in root.iter(f"{SVG}polyline")]
    assert [len(points) for points in lines] == [2, 2, 2, 2]
    left, right = ([float(number) for number in point.split(",")] for point in lines[0])
    assert left[0] < right[0]
    assert left[1] > right[1]  # dearer is higher
    assert "prefers-color-scheme: dark" in text


def test_a_report_is_the_same_after_json() -> None:
    report = Report({}, [Figure("a", "ms", spread([1.0]), target=Target("at most", 2))], [], [])
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


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


@pytest.mark.parametrize("plot", PLOTS, ids=str)
def test_a_played_request_is_complete_and_its_chain_holds(plot: tuple[object, ...]) -> None:
    bodies = [line.body for line in play(fresh_id(0), plot)]  # type: ignore[arg-type]
    assert fold_bodies(bodies).status == "completed"
    assert hash_chain.breaks(bodies) == []


def test_the_plots_contain_a_refusal_and_something_withheld() -> None:
    kinds = {type(codec.decode_event(line.body)) for request in originals(len(PLOTS)) for line in request}
    assert {MoveRefused, FactsWithheld} <= kinds


def test_a_history_has_the_length_asked_for_and_folds() -> None:
    folding = Folding()
    for line in history(2000):
        folding.take(line.body)
    assert folding.events == 2000
    assert folding.ended > 250
    assert len(folding.ledgers) <= 64


def test_copies_differ_in_their_request_alone() -> None:
    lines = list(history(1000))
    by_request: dict[str, list[bytes]] = {}
    for line in lines:
        by_request.setdefault(line.request, []).append(line.body)
    assert len({len(request) for request in by_request}) == 1
    for request, bodies in by_request.items():
        events = [codec.decode_event(body) for body in bodies]
        assert {event.request for event in events} == {request}
        assert [event.n for event in events] == list(range(len(events)))
