"""The table of who hands over to whom: every count has its one cell, and so has all that the fleet allows."""

from hypothesis import given
from hypothesis import strategies as st

from mesh.ops.rows import EdgeCount
from mesh.ui.fleet import Cell, handovers
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.ids import AgentName

NAMES = [f"agent-{n}" for n in range(30)]
COUNTS = st.lists(
    st.builds(
        EdgeCount,
        giver=st.sampled_from([*NAMES, "left"]),
        taker=st.sampled_from([*NAMES, "left", "human"]),
        passed=st.integers(0, 10**9),
        refused=st.integers(0, 10**9),
    ),
    unique_by=lambda each: (each.giver, each.taker),
)


def fleet(to: dict[str, tuple[str, ...] | None], *, human: bool = False) -> Fleet:
    """Return a fleet of agents with those to whom each may hand over; None: to all."""
    agents = {
        name: AgentEntry(name=AgentName(name), to=None if own is None else tuple(map(AgentName, own)))
        for name, own in to.items()
    }
    return Fleet(name="f", entry=AgentName(next(iter(to))), agents=agents, human=human)


@given(
    COUNTS, st.dictionaries(st.sampled_from(NAMES), st.none() | st.tuples(st.sampled_from(NAMES)), min_size=1)
)
def test_every_count_and_every_allowed_pair_has_one_cell(
    found: list[EdgeCount], to: dict[str, tuple[str, ...] | None]
) -> None:
    shown = handovers(fleet(to), found)
    assert all(len(cells) == len(shown.takers) for _, cells in shown.rows)
    cells = {
        (giver, taker): cell
        for giver, row in shown.rows
        for taker, cell in zip(shown.takers, row, strict=True)
    }
    counted = {pair: (cell.passed, cell.refused) for pair, cell in cells.items()}
    assert {pair: both for pair, both in counted.items() if any(both)} == {
        (each.giver, each.taker): (each.passed, each.refused) for each in found if each.passed or each.refused
    }
    for giver, takers in to.items():
        for taker in to if takers is None else takers:
            assert cells.get((giver, taker), Cell()).may == (taker != giver)
    assert sum(cell.may for cell in cells.values()) == sum(
        len({*(to if takers is None else takers)} - {giver}) for giver, takers in to.items()
    )


def test_names_stand_in_the_fleets_order_and_those_without_a_pair_do_not_stand_there() -> None:
    to: dict[str, tuple[str, ...] | None] = {"triage": ("billing",), "billing": ("triage",), "alone": ()}
    shown = handovers(fleet(to), [EdgeCount("gone", "billing", 2, 0), EdgeCount("billing", "human", 0, 1)])
    assert shown.takers == ["triage", "billing", "human"]
    assert [giver for giver, _ in shown.rows] == ["triage", "billing", "gone"]
    assert shown.rows[1][1] == [Cell(may=True), Cell(), Cell(refused=1)]


def test_everybody_may_hand_to_people_where_there_are_some() -> None:
    shown = handovers(fleet({"a": ()}, human=True), [])
    assert (shown.takers, shown.rows) == (["human"], [("a", [Cell(may=True)])])
