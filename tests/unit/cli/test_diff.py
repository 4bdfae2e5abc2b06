"""Two requests side by side: the field at which they part, whatever else of them cannot be the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mesh.cli.exits import Exit
from mesh.ops.diff import FIELDS, ComparedSide, RequestDiff, compared
from mesh.testing import InMemoryGuard, Policy, fleet_of
from protocol.views.timeline import timeline
from protocol.wire.commands import Report, Usage
from protocol.wire.handoff import Fact
from protocol.wire.moves import Complete, Fail, HandBack, Move, Transfer
from tests.unit.cli.conftest import STORY, Mesh

FLEET = fleet_of("a", "b", "c")
GIVEN = (Fact(key="n", value=1),)


def to(agent: str, *facts: Fact, summary: str = "go on") -> Transfer:
    return Transfer(to_agent=agent, summary=summary, facts=facts)  # type: ignore[arg-type]


PLAIN: tuple[Move, ...] = (to("b", *GIVEN), HandBack(summary="no"), Complete(answer="done"))


def walked(*moves: Move, text: str = "hello", **policy: Any) -> InMemoryGuard:
    guard = InMemoryGuard(FLEET, {"default": Policy(**policy)})
    guard.submit(text)
    for move in moves:
        guard.move(move)
    return guard


def diff_of(one: InMemoryGuard, other: InMemoryGuard, *, texts: bool = False) -> RequestDiff:
    return compared(timeline(one.events), timeline(other.events), texts=texts)


def test_a_request_is_the_same_as_another_with_other_ids_times_costs_and_clients() -> None:
    one, other = walked(*PLAIN), InMemoryGuard(structs.replace(FLEET, clients=("kim",)), number=2)
    other.submit("hello")
    other.wait(5)
    for move in PLAIN:
        other.move(move, report=Report(usage=Usage(tokens=7, model_calls=1)))
    found = diff_of(one, other)
    assert found.same, found.first
    assert (found.first, found.fields) == (None, ())
    assert all(row.is_same for row in found.rows)


CHANGED: dict[str, tuple[InMemoryGuard, tuple[int, int], object, object]] = {
    "move": (walked(to("b", *GIVEN), Fail(reason="no")), (2, 3), "hand_back", "fail"),
    "target": (walked(to("c", *GIVEN), *PLAIN[1:]), (1, 1), "b", "c"),
    "verdict": (walked(*PLAIN, max_depth=0), (1, 1), "admitted", "refused"),
    "facts": (walked(to("b", Fact(key="n", value=True)), *PLAIN[1:]), (1, 1), {"n": 1}, {"n": True}),
    "answer": (walked(*PLAIN[:2], Complete(answer="almost")), (4, 4), "done", "almost"),
}
"""By field: a request that differs in it from PLAIN, the events of both, and both values.

An end is one event later than its entry: what is withheld from the client stands before it.
"""


@pytest.mark.parametrize("field", CHANGED)
def test_the_first_divergence_names_event_field_and_both_values(field: str) -> None:
    other, places, was, now = CHANGED[field]
    found = diff_of(walked(*PLAIN), other)
    first = found.first
    assert first is not None
    assert (first.a, first.b, first.field, first.was, first.now) == (*places, field, was, now)
    assert found.fields[0] == first
    assert not found.same


def test_of_two_refusals_the_rule_is_the_divergence() -> None:
    one, other = walked(to("b"), max_depth=0), walked(to("nobody"), max_depth=0)
    first = diff_of(one, other).first
    assert first is not None
    assert first.field == "target"
    one, other = walked(to("b"), max_depth=0), walked(to("b"), max_depth=4)
    assert [each.field for each in diff_of(one, other).fields] == ["verdict", "rule"]


def test_what_was_put_between_is_shown_beside_nothing_and_the_rest_beside_its_like() -> None:
    found = diff_of(walked(*PLAIN), walked(to("nobody"), *PLAIN))
    first = found.first
    assert first is not None
    assert (first.field, first.was, first.now) == ("target", "b", "nobody")
    shape = [(row.a and row.a.n, row.b and row.b.n) for row in found.rows]
    assert shape == [(0, 0), (None, 1), (1, 2), (2, 3), (4, 5)]
    assert [row.is_same for row in found.rows] == [True, False, True, True, True]


def test_one_that_goes_on_parts_where_the_other_ends() -> None:
    first = diff_of(walked(*PLAIN[:2]), walked(*PLAIN)).first
    assert first is not None
    assert (first.a, first.b, first.field, first.was, first.now) == (None, 4, "move", None, "complete")


def test_texts_are_compared_if_that_is_wanted() -> None:
    one, other = walked(to("b", summary="x")), walked(to("b", summary="y"))
    assert diff_of(one, other).same
    first = diff_of(one, other, texts=True).first
    assert first is not None
    assert first.field == FIELDS[-1] == "text"


# --- the command ----------------------------------------------------------------------------------


def exported(guard: InMemoryGuard, path: Path) -> Path:
    path.write_bytes(b"".join(body + b"\n" for body in guard.bodies))
    return path


def test_the_exit_status_says_same_different_or_wrong(mesh: Mesh, here: Path) -> None:
    one, same = exported(walked(*PLAIN), here / "one"), exported(walked(*PLAIN), here / "same")
    other = exported(CHANGED["target"][0], here / "other")
    assert mesh("diff", one, same).exit_code == Exit.DONE
    assert mesh("diff", one, other).exit_code == Exit.FAILED
    assert mesh("diff", f"{one}@0", f"{other}@0").exit_code == Exit.DONE
    (here / "broken").write_bytes(one.read_bytes()[40:])
    gone = b"".join(one.read_bytes().splitlines(keepends=True)[1:])
    (here / "gone").write_bytes(gone)
    for wrong in ("nothing-there", f"{one}@9", here / "broken", here / "gone"):
        result = mesh("diff", one, wrong)
        assert result.exit_code == Exit.USAGE, result.output
        assert result.stderr.startswith("mesh: ")


def test_what_came_after_an_event_is_compared_alone(mesh: Mesh, here: Path) -> None:
    one, other = (
        exported(walked(*PLAIN), here / "one"),
        exported(walked(to("nobody"), to("c"), *PLAIN), here / "other"),
    )
    assert mesh("diff", one, other).exit_code == Exit.FAILED
    late = mesh("diff", f"{one}@1..", f"{other}@3..", "--json")
    assert late.exit_code == Exit.FAILED, late.output  # c gives where a gave
    assert json.loads(late.stdout)["first"]["field"] == "target"
    assert mesh("diff", f"{one}@1..", f"{one}@1..").exit_code == Exit.DONE
    part = json.loads(mesh("diff", f"{one}@1..2", f"{one}@0..2", "--json").stdout)
    assert [(side["after"], side["through"]) for side in (part["a"], part["b"])] == [(1, 2), (0, 2)]
    assert len(part["rows"]) == 2
    assert mesh("diff", one, f"{one}@9..").exit_code == Exit.USAGE
    for name in ("odd@", "odd@..", "odd@x"):  # names of files, and of nothing else
        exported(walked(*PLAIN), here / name)
        assert mesh("diff", one, here / name).exit_code == Exit.DONE


@pytest.mark.parametrize(
    ("after", "through", "written"),
    [(None, None, "r"), (None, 7, "r@7"), (3, None, "r@3.."), (0, 7, "r@0..7")],
)
def test_a_side_is_written_as_the_command_takes_it(
    after: int | None, through: int | None, written: str
) -> None:
    side = ComparedSide(request="r", status="open", after=after, through=through)
    assert side.written == written


def test_a_file_of_several_requests_is_refused(mesh: Mesh, here: Path) -> None:
    both = here / "both"
    second = InMemoryGuard(FLEET, number=2)
    second.submit("hello")
    both.write_bytes(b"\n".join([*walked(*PLAIN).bodies, *second.bodies]))
    result = mesh("diff", STORY, both)
    assert result.exit_code == Exit.USAGE
    assert "2 requests" in result.stderr


def test_a_program_reads_the_whole_of_it(mesh: Mesh, here: Path) -> None:
    one, other = exported(walked(*PLAIN), here / "one"), exported(CHANGED["target"][0], here / "other")
    read = json.loads(mesh("diff", one, f"{other}@2", "--json").stdout)
    assert read["first"] == {"a": 1, "b": 1, "field": "target", "was": "b", "now": "c"}
    assert (read["a"]["through"], read["b"]["through"], read["same"]) == (None, 2, False)
    assert read["rows"][1]["differs"] == ["target"]
    assert read["rows"][-1]["b"] is None


def test_people_read_both_side_by_side(mesh: Mesh, here: Path) -> None:
    one, other = (
        exported(walked(*PLAIN), here / "one"),
        exported(walked(to("nobody"), *PLAIN), here / "other"),
    )
    lines = mesh("diff", one, other).stdout.splitlines()
    assert "first divergence: target at event 1: b → nobody" in lines
    rows = lines[lines.index("A\t\tB") :]
    assert rows[2:4] == ["\t>\t1 a ✗ nobody transfer: known_agent", "1 a → b transfer\t\t2 a → b transfer"]
