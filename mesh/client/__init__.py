"""The client's side of a request: submit it, follow it, answer what it asks, read its journals."""

from mesh.client.client import Client, SubmitRejected
from mesh.client.outcome import AnswerInvalid, Outcome
from mesh.client.questions import Question

__all__ = ["AnswerInvalid", "Client", "Outcome", "Question", "SubmitRejected"]
