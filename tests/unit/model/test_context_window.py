"""A context window never holds more than it may, and says what it left out."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.model.context_window import ContextTooSmall, ContextWindow, Passage, estimated_tokens

words = st.text("ab é漢\n", max_size=60)
passages = st.lists(st.builds(Passage, words, words, words, st.booleans()), max_size=12)
counters: st.SearchStrategy[Callable[[str], int]] = st.sampled_from(
    (estimated_tokens, len, lambda text: len(text.split()), lambda text: 3 * text.count("a"))
)


def numbered(n: int) -> list[Passage]:
    return [Passage(f"t{at}", f"summary {at}", f"whole {at} " * 40, at == n - 1) for at in range(n)]


@settings(max_examples=300, deadline=None)
@given(words, words, passages, st.integers(1, 200), counters)
def test_a_window_is_never_over_its_limit(
    task: str, plan: str, known: list[Passage], most: int, count: Callable[[str], int]
) -> None:
    window = ContextWindow(most, count=count)
    bare = "\n\n".join(filter(None, (task, plan)))
    if count(bare) > window.limit:
        with pytest.raises(ContextTooSmall) as small:
            window.fit(task, plan, known)
        assert (small.value.needed, small.value.limit) == (count(bare), window.limit)
        return
    fitted = window.fit(task, plan, known)
    assert fitted.text.startswith(bare)
    assert fitted.tokens == count(fitted.text) <= window.limit
    for each in known:
        assert f"- {each.name}: {each.summary}" in fitted.text or f"summary of {each.name}" in fitted.left_out
        if each.in_hand and each.text:
            assert each.text in fitted.text or f"full text of {each.name}" in fitted.left_out


def test_everything_is_there_where_it_fits_and_full_text_only_of_what_is_in_hand() -> None:
    fitted = ContextWindow(10_000).fit("Task: x", "Plan: y", numbered(3))
    assert fitted.left_out == ()
    assert "summary 0" in fitted.text
    assert "whole 2" in fitted.text
    assert "whole 1" not in fitted.text


def test_a_text_that_does_not_fit_is_left_out_whole_and_named() -> None:
    fitted = ContextWindow(100).fit("Task: x", "Plan: y", numbered(3))
    assert fitted.left_out == ("full text of t2",)
    assert "whole" not in fitted.text
    assert fitted.text.endswith("Left out, as it does not fit: full text of t2.")


def test_what_is_in_hand_comes_first_and_then_the_newest() -> None:
    fitted = ContextWindow(150, keep=1.0).fit("Task", "", [Passage("hand", "h", in_hand=True), *numbered(60)])
    assert "- hand: h" in fitted.text
    assert fitted.left_out[0] == "summary of t0"
    assert "summary of hand" not in fitted.left_out
    assert fitted.text.index("- hand: h") < fitted.text.index("Left out")


def test_names_that_do_not_fit_are_counted_in_the_text_and_named_in_the_value() -> None:
    fitted = ContextWindow(30, keep=1.0).fit("Task", "", numbered(200))
    assert "Left out, as it does not fit: 198 summaries, 1 full texts." in fitted.text
    assert "- t199: summary 199" in fitted.text
    assert len(fitted.left_out) == 199


def test_a_task_and_a_plan_that_alone_are_too_much_are_a_typed_error() -> None:
    with pytest.raises(
        ContextTooSmall, match="take 25 tokens, and the context window has room for 8"
    ) as small:
        ContextWindow(10).fit("x" * 100)
    assert small.value.permanent


@pytest.mark.parametrize(("most", "keep"), [(0, 0.8), (10, 0), (10, 1.1)])
def test_numbers_out_of_range_are_refused(most: int, keep: float) -> None:
    with pytest.raises(ValueError, match="keep between 0 and 1"):
        ContextWindow(most, keep)


def test_the_estimate_does_not_take_other_scripts_for_a_fraction_of_what_they_cost() -> None:
    assert estimated_tokens("four") == 1
    assert estimated_tokens("漢字漢字") == 3
    assert estimated_tokens("\ud800") == 1
