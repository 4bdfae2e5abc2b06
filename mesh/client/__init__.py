"""The client's side of a request: submit it, follow it, answer what it asks, read its journals."""

from mesh.client.client import Client, SubmitRejected
from mesh.client.follow import AnswerInvalid, Outcome, Question

__all__ = ["AnswerInvalid", "Client", "Outcome", "Question", "SubmitRejected"]
