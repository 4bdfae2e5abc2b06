"""Who has which partition: even, the same for everybody, and never nobody's for long."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.guard.queues import SILENT, Beat, Roster, divide


@pytest.mark.parametrize("guards", [1, 2, 3, 4, 8, 70])
@pytest.mark.parametrize("partitions", [1, 4, 16, 64])
def test_a_division_is_even_and_the_same_in_any_order(guards: int, partitions: int) -> None:
    names = [f"g{number}" for number in range(guards)]
    owners = divide(names, partitions)
    assert owners == divide(reversed(names), partitions)
    assert sorted(owners) == list(range(partitions))
    loads = Counter(owners.values())
    assert {loads[name] for name in names} <= {partitions // guards, -(-partitions // guards)}


@pytest.mark.parametrize("guards", [1, 2, 4, 8])
def test_most_partitions_stay_where_they_are_when_a_guard_joins(guards: int) -> None:
    names = [f"g{number}" for number in range(guards + 1)]
    before, after = divide(names[:guards], 64), divide(names, 64)
    assert sum(before[each] != after[each] for each in before) <= 2 * 64 / (guards + 1)


class World:
    """Guards and what they hear. One round is one beat of everybody; what is `mine` is held at once."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.running: dict[str, Roster] = {}
        self.frozen: dict[str, Roster] = {}
        self._count = 0

    def join(self) -> None:
        self._count += 1
        roster = Roster(f"g{self._count}", self.partitions)
        self.running[roster.own] = roster
        for beat in map(self.beat, list(self.running.values())):
            if beat.guard != roster.own:
                roster.hear(beat)
        roster.begin()
        self.hold()

    def hold(self) -> None:
        for roster in self.running.values():
            roster.held = roster.mine

    @staticmethod
    def beat(roster: Roster) -> Beat:
        return Beat(guard=roster.own, holds=roster.held, leaves=roster.leaves)

    def round(self, *, lost: bool = False) -> None:
        for beat in [self.beat(each) for each in self.running.values()]:
            for roster in self.running.values():
                if roster.own != beat.guard and not lost:
                    roster.hear(beat)
                    self.hold()
        for roster in self.running.values():
            roster.tick()
        self.hold()

    def holders(self) -> list[list[str]]:
        return [
            [name for name, roster in self.running.items() if each in roster.held]
            for each in range(self.partitions)
        ]


def is_even(world: World) -> bool:
    each = [len(roster.held) for roster in world.running.values()]
    return max(each) - min(each) <= 1


def test_partitions_are_held_by_somebody_at_every_moment_while_guards_come_and_go() -> None:
    world = World(16)
    for change in ("join", "join", "join", "leave", "join", "leave", "leave"):
        if change == "join":
            world.join()
        else:
            next(iter(world.running.values())).leave()
        for _ in range(3):
            world.round()
            assert all(world.holders())
        for name in [name for name, roster in world.running.items() if roster.leaves]:
            assert not world.running.pop(name).held
        assert is_even(world)


def test_a_silent_guards_partitions_are_taken_and_given_back_when_it_is_heard_again() -> None:
    world = World(16)
    for _ in range(3):
        world.join()
        world.round()
    world.round()
    frozen = world.running.pop("g2")
    for _ in range(SILENT - 1):  # the round in which it was last heard counts, too
        world.round()
        assert not any(frozen.held & each.held for each in world.running.values())
    world.round()
    assert all(world.holders())
    world.round()
    assert all(len(each) == 1 for each in world.holders())
    world.running["g2"] = frozen
    world.round()
    world.round()
    assert all(len(each) == 1 for each in world.holders())
    assert is_even(world)


def test_a_partition_whose_guard_takes_nothing_of_it_is_taken_by_others() -> None:
    """It says that it is there, and cannot take messages: a server refuses it, say."""
    world = World(4)
    for _ in range(3):
        world.join()
        world.round()
    world.round()
    stuck = world.running.pop("g1")
    owned = stuck.held
    for _ in range(2 * SILENT):
        for roster in world.running.values():
            roster.hear(Beat(guard="g1"))
        world.round()
    assert owned
    assert all(len(each) == 1 for each in world.holders())


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([1, 4, 16]),
    st.lists(
        st.tuples(st.sampled_from(["join", "leave", "kill", "freeze", "thaw", "lose"]), st.integers(0, 7)),
        max_size=30,
    ),
)
def test_whatever_happens_every_partition_has_one_guard_soon_after(
    partitions: int, happens: list[tuple[str, int]]
) -> None:
    world = World(partitions)
    world.join()
    for what, number in happens:
        names = [name for name, roster in world.running.items() if not roster.leaves]
        name = names[number % len(names)]
        if what == "join" and len(world.running) < 6:
            world.join()
        elif what == "leave" and len(names) > 1:
            world.running[name].leave()
        elif what == "kill" and len(names) > 1:
            del world.running[name]
        elif what == "freeze" and len(names) > 1:
            world.frozen[name] = world.running.pop(name)
        elif what == "thaw" and world.frozen:
            back = list(world.frozen)[number % len(world.frozen)]
            world.running[back] = world.frozen.pop(back)
        world.round(lost=what == "lose")
    world.running = {name: roster for name, roster in world.running.items() if not roster.leaves}
    for _ in range(3 * SILENT):
        world.round()
    assert all(len(each) == 1 for each in world.holders())
    assert is_even(world)
