"""Evidence of a model call that two processes made: when that may be, and when not."""

from collections.abc import Callable

from tests.drill import stalls
from tests.drill.evidence import Evidence, Fault
from tests.drill.tests.scene import SECOND, changed, clean, with_deed


def answered_while_it_slept() -> Evidence:
    """A process was paused in the midst of a model call; another made it and journaled; then it woke."""
    evidence = clean()
    deed = evidence.deeds[0]
    pause = Fault("pause", "a-1", "a", deed.at - 1000, deed.at + 8 * SECOND, pid=102)
    return changed(
        with_deed(evidence, "c1", at=pause.until + 1000, pid=102), faults=(*evidence.faults, pause)
    )


def woke_and_recorded(kind: str, *, began_ms: int) -> Evidence:
    """A process woke and journaled its reply; another had the turn by then, and made the same call.

    Args:
        began_ms: when the other began the call, after the record.
    """
    evidence = clean()
    deed = evidence.deeds[0]
    record = deed.at + 1000
    slept = Fault(kind, "a-1", "a", deed.at - 2 * SECOND, deed.at - 500, pid=deed.pid)
    began = record + began_ms * 1000
    twice = with_deed(evidence, "c1", at=began + 40_000, pid=101, began=began)
    if kind == stalls.KIND:
        return changed(twice, stalls=(slept,))
    return changed(twice, faults=(*twice.faults, slept))


def woke_after_a_pause() -> Evidence:
    return woke_and_recorded("pause", began_ms=-20)


def woke_after_a_stall() -> Evidence:
    return woke_and_recorded(stalls.KIND, began_ms=400)


def called_again_after_a_kill() -> Evidence:
    """A process was killed after a model call and before its record: nobody can know of it."""
    evidence = clean()
    deed = evidence.deeds[0]
    kill = Fault("kill", "a-1", "a", deed.at - 500, deed.at - 100)
    return changed(with_deed(evidence, "c1", at=deed.at - 1000, pid=99), faults=(*evidence.faults, kill))


def model_call(at: Callable[[int], int]) -> Evidence:
    deed = clean().deeds[0]
    return with_deed(clean(), "c1", at=at(deed.at), pid=102)


def killed_after_the_record() -> Evidence:
    """A kill excuses nothing once the reply was journaled."""
    evidence = clean()
    deed = evidence.deeds[0]
    kill = Fault("step.recorded", "a-1", "a", deed.at + 2000, deed.at + 3000)
    return changed(with_deed(evidence, "c1", at=kill.until + 1000), faults=(*evidence.faults, kill))


def by_one_who_did_not_sleep() -> Evidence:
    """A pause of one process is no excuse for another, who could read what was journaled."""
    evidence = clean()
    deed = evidence.deeds[0]
    pause = Fault("pause", "a-1", "a", deed.at - 1000, deed.at + 8 * SECOND, pid=103)
    return changed(
        with_deed(evidence, "c1", at=deed.at + 2 * SECOND, pid=102), faults=(*evidence.faults, pause)
    )


def long_after_a_pause() -> Evidence:
    """A pause that was over long before the reply was journaled excuses nothing."""
    evidence = clean()
    deed = evidence.deeds[0]
    pause = Fault("pause", "a-1", "a", deed.at - 60 * SECOND, deed.at - 58 * SECOND)
    return changed(with_deed(evidence, "c1", at=deed.at + 5000), faults=(*evidence.faults, pause))
