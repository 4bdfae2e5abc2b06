"""Checking a drill: every promise, and all that the evidence can say against it.

`check` is pure: it reads no file, no clock and no bus, so that kept evidence can be checked again.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from protocol.wire import events
from tests.drill import log_checks, tree_checks, world_checks
from tests.drill.evidence import SERVER, Evidence, Fault
from tests.drill.findings import Breach, Findings
from tests.drill.log_checks import asks_client, letters, no_dead_letters, waits_for_people
from tests.drill.reading import Reading
from tests.drill.replicas import replicas_agree
from tests.drill.standstill import unrested
from tests.drill.verdicts import verdicts_right


class Check(NamedTuple):
    """One attempt to contradict a promise."""

    find: Callable[[Reading], Iterator[Breach]]
    promise: str
    """In words, for whoever reads a breach."""
    counts_as: str = ""
    """`lost` or `duplicated`, where a breach is one of these."""

    @property
    def name(self) -> str:
        return self.find.__name__


CHECKS = (
    Check(log_checks.nothing_lost, "what was acknowledged ends, or waits for a person", "lost"),
    Check(replicas_agree, "every server of a cluster holds the same"),
    Check(log_checks.one_end, "a request ends once, and nothing follows", "duplicated"),
    Check(log_checks.only_what_was_sent, "the log holds only requests that somebody sent"),
    Check(log_checks.orders_obeyed, "what people say is heard"),
    Check(log_checks.comes_to_rest, "requests and faults come to an end"),
    Check(log_checks.in_time_counts, "what was answered in time was answered"),
    Check(log_checks.people_can_act, "what people are asked for they can do"),
    Check(log_checks.ends_as_told, "a request ends as its story says"),
    Check(log_checks.services_stand, "no service ends by itself"),
    Check(log_checks.sound_chain, "numbers are dense and the hash chain holds"),
    Check(log_checks.one_successor, "a turn is ended at most once", "duplicated"),
    Check(log_checks.one_decision, "a round is decided at most once", "duplicated"),
    Check(log_checks.one_event_a_cause, "what asked for an event got one", "duplicated"),
    Check(tree_checks.no_task_lost, "a task comes to an end, and its lead is told of it", "lost"),
    Check(tree_checks.no_task_twice, "a task is opened, ended and told once", "duplicated"),
    Check(tree_checks.one_task_at_a_time, "an offer goes to one agent, and each has one of them at a time"),
    Check(tree_checks.claims_count, "a claim in time is heard"),
    Check(tree_checks.no_tree_overspends, "a tree spends no more than its root was given"),
    Check(tree_checks.every_end_told, "whoever's turn was ended is told"),
    Check(verdicts_right, "a move is admitted or refused as the rules have it"),
    Check(log_checks.exact_replay, "the code derives every event anew, to the letter"),
    Check(log_checks.consequences_follow, "what is due is done"),
    Check(no_dead_letters, "no message of the drill's was put aside"),
    Check(world_checks.no_effect_twice, "no effect twice", "duplicated"),
    Check(world_checks.one_key_a_call, "a call has one key, whatever round it is made in", "duplicated"),
    Check(world_checks.intent_first, "no effect without its intent in the journal"),
    Check(world_checks.remarked_first, "a remark is journaled before the code goes on"),
    Check(world_checks.done_as_said, "what was said to be done was done"),
    Check(world_checks.journaled_before_used, "a reply is journaled before it is used"),
    Check(world_checks.no_model_call_paid_twice, "no model call is paid twice", "duplicated"),
    Check(world_checks.fenced, "a round that was overtaken is stopped"),
    Check(world_checks.readable_journals, "every step is a record"),
)
"""All checks, the gravest first."""

BY_NAME = {check.name: check for check in CHECKS}


def check(evidence: Evidence) -> Findings:
    """Return what the evidence says of every promise."""
    reading = Reading(evidence)
    breaches = tuple(breach for each in CHECKS for breach in each.find(reading))
    counted = Counter(BY_NAME[breach.promise].counts_as for breach in breaches)
    lost = {breach.request for breach in breaches if BY_NAME[breach.promise].counts_as == "lost"}
    ledgers = [story.ledger for story in reading.stories.values() if story.ledger is not None]
    opened = [ledger for ledger in ledgers if ledger.is_open]
    found = [event for story in reading.stories.values() for event in story.events]
    codes = Counter(letter.code if letter is not None else "unreadable" for letter in letters(reading))
    return Findings(
        requests=len(evidence.submitted),
        acknowledged=sum(submitted.acknowledged for submitted in evidence.submitted),
        ended=dict(sorted(Counter(ledger.status for ledger in ledgers if not ledger.is_open).items())),
        waiting=sum(
            str(ledger.request) not in lost and (waits_for_people(ledger) or asks_client(ledger))
            for ledger in opened
        ),
        lost=len(lost),
        duplicated=counted["duplicated"],
        doubted=sum(isinstance(event, events.EffectDoubted) for event in found),
        in_doubt=sum(turn.state == "doubted" for ledger in opened for turn in ledger.open.values()),
        events=sum(map(len, evidence.bodies.values())),
        deeds=dict(sorted(Counter(deed.kind for deed in evidence.deeds).items())),
        ledger=evidence.with_ledger,
        faults=dict(sorted(Counter(map(_kind, evidence.faults)).items())),
        unreached=tuple(evidence.unreached),
        dead_letters=dict(sorted(codes.items())),
        unrested=tuple(unrested(reading)),
        unfinished=tuple(evidence.unfinished),
        breaches=breaches,
    )


def _kind(fault: Fault) -> str:
    """Return what was done, as `--kinds` names it."""
    to_process = fault.name == SERVER and fault.kind in ("kill", "pause", "restart")
    return f"server-{fault.kind}" if to_process else fault.kind
