"""What becomes of measured numbers."""

import msgspec
import pytest

from bench.figures import Figure, Report, Target, Use, percentile, ratio, spread
from bench.printing import as_text


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


def test_a_report_is_the_same_after_json() -> None:
    report = Report({}, [Figure("a", "ms", spread([1.0]), target=Target("at most", 2))], [], [])
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
