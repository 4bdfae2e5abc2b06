"""A mesh that lost its server for good and was restored does nothing twice; and what would be is found."""

import random
from pathlib import Path

import pytest

from tests.drill import ledger, people
from tests.drill.evidence import Deed, Kind
from tests.drill.lost_time import MOMENTS, check, cuts, moment

REQUESTS, CUTS, SEED = 30, 2, 7
WAIT_S = 560


@pytest.mark.timeout(WAIT_S)
async def test_a_restored_mesh_loses_no_request_and_does_nothing_twice(tmp_path: Path) -> None:
    told: list[str] = []
    found = await cuts(CUTS, REQUESTS, SEED, tmp_path, told.append)
    assert (found.lost, found.twice, found.silent) == ((), (), ()), told
    assert found.passed
    assert found.requests == CUTS * REQUESTS
    assert found.lost_deeds > 0
    assert len(told) == CUTS
    assert {"before services", "beside services"} == {
        line.split("restored ")[1].split(",")[0] for line in told
    }


@pytest.mark.timeout(WAIT_S)
async def test_a_lost_request_says_what_people_could_not_do_and_what_its_cut_wrote_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(path: Path) -> list[Deed]:
        raise ValueError(f"{path} has half a line")

    monkeypatch.setattr(people, "deeds", torn)
    made, kept = tmp_path / "made", tmp_path / "kept"
    found = await cuts(1, REQUESTS, SEED, made, keep=kept)
    assert found.lost
    assert all(": after effect.doubted, ValueError" in each for each in found.lost)
    assert not list(made.iterdir())
    assert ledger.deeds(kept / f"{SEED}-0" / "ledger.jsonl")


def deed(kind: Kind, key: str = "", call: str = "c1") -> Deed:
    return Deed(at=0, kind=kind, tool="tool", key=key, request="r", call=call)


@pytest.mark.parametrize(
    ("deeds", "twice", "silent"),
    [
        ((deed("idempotent", "k"), deed("idempotent", "k")), 0, 0),
        ((deed("idempotent", "k"), deed("idempotent", "other")), 1, 0),
        ((deed("reconcilable", "k"), deed("reconcilable", "k")), 1, 0),
        ((deed("once"), deed("once", call="c2")), 0, 0),
        ((deed("once"), deed("once")), 0, 1),
        ((deed("model"), deed("model"), deed("read"), deed("read")), 0, 0),
    ],
)
def test_an_effect_that_happened_twice_is_found(deeds: tuple[Deed, ...], twice: int, silent: int) -> None:
    found = check(deeds)
    assert tuple(map(len, found)) == (twice, silent)


def test_a_deed_that_is_being_written_is_read_when_its_line_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "ledger.jsonl"
    monkeypatch.setenv(ledger.VARIABLE, str(book))
    ledger.note("once", "pay", call="c1")
    whole = book.read_bytes()
    ledger.note("once", "pay", call="c2")
    both = book.read_bytes()
    for size in range(len(whole), len(both)):
        book.write_bytes(both[:size])
        assert [each.call for each in ledger.deeds(book)] == ["c1"]
    book.write_bytes(both)
    assert [each.call for each in ledger.deeds(book)] == ["c1", "c2"]


def test_seeds_draw_other_moments_and_the_same_ones_again() -> None:
    drawn = [moment(random.Random(seed), 100, seed) for seed in range(40)]
    assert drawn == [moment(random.Random(seed), 100, seed) for seed in range(40)]
    assert {each.what for each in drawn} == set(MOMENTS)
    assert {each.beside for each in drawn} == {True, False}
