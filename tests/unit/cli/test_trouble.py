"""What a submitter who waits is told of a request that is held up."""

from mesh.ops.words import Trouble
from protocol.wire.handoff import Constraints
from tests.unit.protocol.trees import task, tree


def test_a_turn_that_ran_out_of_time_is_told_with_its_agent() -> None:
    play = tree(task("one", "b", constraints=Constraints(max_resolution_time_s=5.0)))
    play.wait(5)
    trouble = Trouble()
    told = [said for event in play.events if (said := trouble.in_words(event))]
    assert told == ["b's turn broke: the handoff's deadline passed; it is not tried again"]
