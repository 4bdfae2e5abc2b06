"""What a person reads at the end of a drill."""

from tests.drill.check import check
from tests.drill.report import MOST_SHOWN, lines
from tests.drill.tests.scene import REQUEST, changed, clean, opened, with_deed


def test_a_drill_without_a_breach_says_so_and_counts_everything() -> None:
    told = "\n".join(" ".join(line.split()) for line in lines(check(clean())))
    assert "requests 1 (1 acknowledged)" in told
    assert "faults 2 (1 effect.ran, 1 kill)" in told
    assert "lost 0" in told
    assert "in doubt 0 (1 came into doubt, the rest is settled)" in told
    assert "agent 1 2.00 s 2.00 s 2.00 s 1 0" in told
    assert told.endswith("no promise was broken")


def test_a_breach_says_what_was_promised_and_where_to_look() -> None:
    told = lines(check(opened().evidence()))
    assert "nothing_lost: what was acknowledged ends, or waits for a person (1 breach)" in told
    assert any(
        REQUEST in line and "mesh request show" in line and "a (working, round 0)" in line for line in told
    )
    assert told[-1] == "PROMISES WERE BROKEN"


def test_many_breaches_of_one_promise_are_not_all_printed() -> None:
    evidence = clean()
    for n in range(MOST_SHOWN + 5):
        evidence = with_deed(evidence, "c4", key=f"k4-{n}", call=f"x{n}")
    told = lines(check(evidence))
    assert any(line.strip() == "… and 5 more (--json has all)" for line in told)


def test_without_a_ledger_nothing_is_claimed_of_the_world_outside() -> None:
    told = lines(check(changed(clean(), deeds=(), with_ledger=False)))
    assert any(line.split(maxsplit=4)[-1] == "no ledger: not checked" for line in told)


def test_a_wide_word_moves_no_column() -> None:
    told = lines(check(clean()))
    table = told[: told.index("")]
    assert len({line.index(line.split("  ")[-1].strip()) for line in table}) == 1
