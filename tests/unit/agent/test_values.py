"""Authors' own objects: how a turn's moves take them, how its facts are read as them, and what types know."""

import dataclasses
import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from mesh.agent import FactUnusable, Permanent, Turn, tool
from mesh.agent.errors import ToolArgumentsInvalid
from mesh.testing import turn
from protocol.wire import codec
from protocol.wire.commands import MoveProposed
from protocol.wire.handoff import Fact
from protocol.wire.ids import TurnId
from protocol.wire.moves import Complete, HandBack, Transfer
from tests.certain import is_


class Order(BaseModel):
    number: int
    placed: dt.date


@dataclasses.dataclass
class Line:
    order: Order
    price: Decimal


class Parcel(msgspec.Struct):
    sent: dt.date


PLACED = dt.date(2026, 11, 22)
ORDER = Order(number=7, placed=PLACED)
AS_JSON = {"number": 7, "placed": "2026-11-22"}


@pytest.mark.parametrize(
    ("given", "travels"),
    [
        (ORDER, AS_JSON),
        ([ORDER], [AS_JSON]),
        (Line(ORDER, Decimal("1.50")), {"order": AS_JSON, "price": "1.50"}),
        (Parcel(PLACED), {"sent": "2026-11-22"}),
        ({"when": PLACED, 7: {"x"}}, {"when": "2026-11-22", "7": ["x"]}),
        ("words", "words"),
        (None, None),
    ],
)
def test_moves_take_objects_and_hand_on_what_the_bus_will(given: Any, travels: Any) -> None:
    here = turn()
    moves = (
        here.complete(given),
        here.transfer("other", summary="do", facts={"it": given}),
        here.hand_back("no", facts=[Fact(key="it", value=given, labels=("pii",))]),
    )
    for move in moves:
        body = codec.encode(MoveProposed(turn=TurnId("turn"), round=0, move=move))
        read = is_(codec.parse_proposal(body), MoveProposed)
        match read.move:
            case Complete(answer=answer):
                assert answer == travels
            case Transfer(facts=(fact,)) | HandBack(facts=(fact,)):
                assert fact.value == travels
            case _:
                raise AssertionError(read.move)


@pytest.mark.parametrize("given", [object(), Order, {"deep": [object()]}])
def test_what_is_no_value_is_refused_where_it_is_handed_in(given: object) -> None:
    with pytest.raises(TypeError, match="is no JSON value: JSON values, pydantic objects"):
        turn().complete(given)
    with pytest.raises(TypeError, match="is no JSON value"):
        turn().transfer("other", summary="do", facts={"it": given})


def test_a_fact_is_read_as_a_type() -> None:
    here = turn(facts={"order": AS_JSON, "parcel": {"sent": "2026-11-22"}, "orders": [AS_JSON]})
    assert here.fact("order", Order).placed == PLACED
    assert here.fact("parcel", Parcel).sent == PLACED
    assert here.fact("orders", list[Order]) == [ORDER]


@pytest.mark.parametrize("kind", [Order, Parcel])
def test_a_fact_that_does_not_fit_is_a_permanent_failure_that_repeats_no_value(kind: type) -> None:
    here = turn(facts={"it": {"number": "4111-1111", "sent": "soon"}})
    with pytest.raises(
        FactUnusable, match=rf"the fact 'it' is no {kind.__name__}: .*(number|sent)"
    ) as raised:
        here.fact("it", kind)
    assert isinstance(raised.value, Permanent)
    assert "4111" not in str(raised.value)


def test_a_fact_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(FactUnusable, match="no fact 'ordre': there are order, name"):
        turn(facts={"order": 1, "name": 2}).fact("ordre", int)
    with pytest.raises(FactUnusable, match="no fact 'order': there are none"):
        turn().fact("order", int)


# --- what a type checker knows: each `type: ignore` here is one mistake that mypy finds ---------------


@tool
async def add(a: int, b: int = 0, *, c: int = 0) -> int:
    """Add up."""
    return a + b + c


@tool(effect="idempotent")
def pay(cents: int, idempotency_key: str = "") -> str:
    """Pay."""
    return idempotency_key


async def test_a_call_by_place_is_one_by_name() -> None:
    assert await turn().call(add, 1, 2, c=3) == 6
    assert await turn().call(add, a=1) == 1
    assert await turn().call(pay, 5) == await turn().call(pay, cents=5)


async def test_a_type_checker_finds_arguments_that_do_not_fit() -> None:
    here: Turn = turn()
    with pytest.raises(ToolArgumentsInvalid, match="c: Input should be a valid integer"):
        await here.call(add, a=1, c="two")  # type: ignore[arg-type]
    with pytest.raises(ToolArgumentsInvalid, match="too many positional arguments"):
        await here.call(add, 1, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(ToolArgumentsInvalid, match="multiple values for argument 'a'"):
        await here.call(add, 1, a=2)  # type: ignore[misc]
    with pytest.raises(ToolArgumentsInvalid, match="a: Field required"):
        await here.call(add)  # type: ignore[call-arg]
    with pytest.raises(ToolArgumentsInvalid, match="cents"):
        await here.call(pay, cents=None)  # type: ignore[arg-type]


def test_a_tool_is_called_as_the_function_that_it_is() -> None:
    said: str = pay(5, idempotency_key="key")
    assert said == "key"
    with pytest.raises(TypeError):
        pay()  # type: ignore[call-arg]
    given: int = pay(5)  # type: ignore[assignment]
    assert not given
