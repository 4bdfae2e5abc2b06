"""What a request asks its clients: the questions that wait for a reply, side by side.

The tasks of a tree may ask at the same time. The last event in a client's inbox shows one question and does
not show that one is over. So guards keep a list for each request and client, made here from the ledger.
"""

import msgspec

from protocol.domain.request_state import RequestState
from protocol.wire.ids import AgentName
from protocol.wire.records import QUESTIONS_BYTES, OpenQuestion, Questions


def questions_to(ledger: RequestState, reader: AgentName) -> tuple[OpenQuestion, ...]:
    """Return every question that waits for this reader, the oldest first."""
    waiting = [
        OpenQuestion(
            n=turn.since_n,
            turn=turn.id,
            round=turn.round,
            agent=turn.agent,
            ask=turn.ask,
            expires_at=turn.due_at or 0,
        )
        for turn in ledger.open.values()
        if turn.state == "suspended" and turn.ask is not None and turn.ask.to_agent == reader
    ]
    return tuple(sorted(waiting, key=lambda question: question.n))


def listed(waiting: tuple[OpenQuestion, ...], n: int) -> Questions:
    """Return the list that a reader is shown as of event `n`.

    A message has a size that the bus takes: what finds no room is counted, and comes once there is room.
    """
    room, shown = QUESTIONS_BYTES, list[OpenQuestion]()
    for question in waiting:
        room -= len(msgspec.json.encode(question))
        if room < 0 and shown:
            break
        shown.append(question)
    return Questions(n=n, open=tuple(shown), more=len(waiting) - len(shown))
