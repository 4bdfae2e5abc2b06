"""What the research agents can do: search the corpus, read a document, hold a claim against every source.

All of them only read. A document is always named by its id, so that an answer can cite it.
"""

from collections import defaultdict
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from agents.research.library import (
    Document,
    Statement,
    answers,
    documents,
    index,
    nearest,
    same_kind,
    statement,
    subject_of,
)
from mesh.agent import ToolError, tool

DocumentId = Annotated[str, Field(pattern=r"^d-\d{4}$", description="Like d-0042.")]
MOST = 60
"""Documents that are looked at for one claim."""


@tool
def search(question: str, limit: Annotated[int, Field(ge=1, le=20)] = 8) -> dict[str, Any]:
    """Search the corpus by a question about one thing. Gives documents, each with the sentence that answers.

    `of` says how many documents answer; those beyond `limit` are left out.
    """
    tellings = [each for each in _tellings(question) if answers(question, each.said)]
    if not tellings:
        raise ToolError("No document answers that. Ask with other words, or for less at once.")
    shown = [_cited(each) for each in tellings[:limit]]
    return {"subject": _subject(question), "documents": shown, "of": len(tellings)}


@tool
def read_document(document: DocumentId) -> dict[str, Any]:
    """Read one document: title, source, kind, year, text. Kind `correction` takes back earlier pages."""
    there = documents().get(document)
    if there is None:
        raise ToolError(f"There is no document {document}.")
    return {
        "document": there.id,
        "title": there.title,
        "source": there.source,
        "kind": there.kind,
        "year": there.year,
        "text": there.text,
    }


class Telling(NamedTuple):
    """A document that says something about what a claim is about."""

    document: Document
    said: Statement


@tool
def check_claim(claim: str) -> dict[str, Any]:
    """Hold a claim, one whole sentence with its value, against every document that speaks of the same.

    Verdicts: `agreed` (no document says otherwise); `corrected` (some do, and a later correction settles it);
    `changed` (the older documents give one value, the newer ones another); `disputed` (they contradict each
    other, and nothing settles it); `unsupported` (no document speaks of it). `values` lists each value with
    the documents that give it, `told` says them in a line; `holds` is the value that stands, where one does.
    """
    asked = statement(claim, _subject(claim))
    by_value: dict[str, list[Document]] = defaultdict(list)
    for each in _tellings(claim):
        if same_kind(asked, each.said):
            by_value[", ".join(sorted(each.said.values))].append(each.document)
    values = [
        {"value": value, "documents": [each.id for each in sorted(those, key=lambda each: each.year)]}
        for value, those in sorted(by_value.items(), key=lambda item: -len(item[1]))
    ]
    verdict, holds = _judged(by_value)
    told = "; ".join(f"{each['value']} [{', '.join(each['documents'])}]" for each in values)
    return {"claim": claim, "verdict": verdict, "holds": holds, "values": values, "told": told}


def _subject(said: str) -> str:
    return subject_of(said, [each.title for each in index().matches(said, MOST)])


def _tellings(said: str) -> list[Telling]:
    """Return the documents that give a value of what a question or a claim is about, the best first."""
    subject = _subject(said)
    if not subject:
        return []
    asked = statement(said, subject)
    near = ((each, nearest(asked, each.text, subject)) for each in index().matches(said, MOST))
    return [Telling(each, found) for each, found in near if found is not None and found.values]


def _judged(by_value: dict[str, list[Document]]) -> tuple[str, str | None]:
    """Return the verdict on values and who gives them, and the value that stands."""
    if not by_value:
        return "unsupported", None
    if len(by_value) == 1:
        return "agreed", next(iter(by_value))
    for value, those in by_value.items():
        if any(each.kind == "correction" for each in those):
            return "corrected", value
    if len(by_value) == 2:
        older, newer = sorted(by_value.items(), key=lambda item: max(each.year for each in item[1]))
        if max(each.year for each in older[1]) < min(each.year for each in newer[1]):
            return "changed", newer[0]
    return "disputed", None


def _cited(telling: Telling) -> dict[str, Any]:
    document = telling.document
    return {
        "document": document.id,
        "source": document.source,
        "year": document.year,
        "kind": document.kind,
        "sentence": telling.said.text,
    }
