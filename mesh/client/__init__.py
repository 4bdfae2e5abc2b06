"""The client's side of a request: submit it, follow it, answer what it asks, read its journals."""

from mesh.client.client import AnswerInvalid, Client, Outcome, Question, SubmitRejected

__all__ = ["AnswerInvalid", "Client", "Outcome", "Question", "SubmitRejected"]
