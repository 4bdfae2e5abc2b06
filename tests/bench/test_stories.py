"""Made logs are what a guard would have written."""

import pytest

from bench.fold import Folding
from bench.stories import PLOTS, fresh_id, history, originals, play
from protocol.domain import hash_chain
from protocol.domain.ledger import fold_bodies
from protocol.wire import codec
from protocol.wire.events import FactsWithheld, MoveRefused


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
