"""Code that works for seconds and journals nothing is warned about, once."""

from mesh.agent._executor import UNJOURNALED_S, EmptyJournals
from tests.logs import captured_logs


def test_an_agent_without_steps_is_named_once_with_the_remedy() -> None:
    times = iter([0.0, UNJOURNALED_S, 2 * UNJOURNALED_S])
    empty = EmptyJournals("billing", now=lambda: next(times))
    with captured_logs() as logs:
        began = empty.now()
        empty.watch(began, steps=0)
        empty.watch(began, steps=0)
    (line,) = logs
    assert (line["event"], line["agent"], line["took_s"]) == ("nothing_journaled", "billing", UNJOURNALED_S)
    assert "mesh.adapters" in line["hint"]
    assert "turn.call" in line["hint"]


def test_quick_code_and_code_with_steps_are_not() -> None:
    times = iter([UNJOURNALED_S / 2, 9 * UNJOURNALED_S])
    empty = EmptyJournals("billing", now=lambda: next(times))
    with captured_logs() as logs:
        empty.watch(0.0, steps=0)
        empty.watch(0.0, steps=1)
    assert not logs
