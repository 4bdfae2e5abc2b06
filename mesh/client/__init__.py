"""The client's side of a request: submit it, follow it, answer its questions, read its journals."""

from mesh.client.client import Client
from mesh.client.follow import AgentNote, AnswerInvalid, JournalStep, LogEvent, Outcome, Question
from mesh.client.submitted import SubmitRejected

__all__ = [
    "AgentNote",
    "AnswerInvalid",
    "Client",
    "JournalStep",
    "LogEvent",
    "Outcome",
    "Question",
    "SubmitRejected",
]
