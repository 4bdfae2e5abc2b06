"""The library: how a document is read, and the corpus with its index.

No model reads: a sentence is about its words, without the smallest, with one word for each idea. Its values
are its numbers and names. So two sentences agree if they are about the same thing and give equal values.

The index is SQLite FTS5 in memory, built by a process on its first search. Indexing `corpus.jsonl` takes some
milliseconds, so no file has to be kept, shared or updated.
"""

import re
import sqlite3
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from mesh.agent import Permanent

ABOUT_THE_SAME = 0.6
"""The share of topics that two statements have in common if they are about the same."""
SEVERAL = 3
"""A subject with documents is named by this many titles; fewer share words by chance."""

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9])")
_WORD = re.compile(r"[A-Za-z][\w'-]*|\d[\d.,]*\d|\d")
_NUMBER = re.compile(r"\b\d[\d,]*(?:\.\d+)?\b")
_NAME = re.compile(r"(?<!^)\b[A-Z][a-z'-]+(?: [A-Z][a-z'-]+)+")
_SMALL_WORDS = """
    a an and are as at be been by did do does each for from had has have how i in is it its many much of on or
    our since that the there this to us was we were what when where which who whom why will with year years
    first time come came tell me please say says do know about
"""
_SMALL = frozenset(_SMALL_WORDS.split())
_SAME = {
    "high": "height",
    "tall": "height",
    "metres": "metre",
    "long": "length",
    "deep": "depth",
    "carries": "passenger",
    "carry": "passenger",
    "landed": "land",
    "passengers": "passenger",
    "lamp": "lit",
    "lighting": "lit",
    "visitors": "visitor",
    "visit": "visitor",
    "volumes": "volume",
    "members": "member",
    "berths": "berth",
    "turbines": "turbine",
    "spans": "span",
    "objects": "object",
    "holds": "hold",
    "lists": "hold",
    "birds": "bird",
    "breeds": "breed",
    "yearly": "year",
    "entered": "service",
    "enter": "service",
    "drawn": "engineer",
    "harbourmaster": "master",
    "captains": "captain",
}
"""One word for each idea; any other word stands for itself."""


class Statement(NamedTuple):
    """A sentence, what it is about, and its values."""

    text: str
    about: frozenset[str]
    values: frozenset[str]


def sentences(text: str) -> list[str]:
    """Return a text's sentences."""
    return [each for each in _SENTENCE.split(text.strip()) if each]


def words(text: str) -> list[str]:
    """Return what a text is about, in its order: words in one form, without small ones and numbers."""
    found = (_SAME.get(word, word) for word in (each.lower() for each in _WORD.findall(text)))
    return [word for word in found if word not in _SMALL and not word[0].isdigit()]


def statement(sentence: str, subject: str) -> Statement:
    """Return a sentence as a statement about `subject`, whose own name is neither a topic nor a value."""
    rest = re.sub(re.escape(subject), " ", sentence, flags=re.IGNORECASE) if subject else sentence
    names = {" ".join(each.split()) for each in _NAME.findall(rest)}
    numbers = {each.replace(",", "") for each in _NUMBER.findall(rest)}
    about = frozenset(words(rest)) - frozenset(words(" ".join(names)))
    return Statement(sentence, about, frozenset(names | numbers))


def likeness(one: Statement, other: Statement) -> float:
    """Return the share of the shorter statement's topics that both have, 0 to 1."""
    return len(one.about & other.about) / (min(len(one.about), len(other.about)) or 1)


def answers(question: str, given: Statement) -> bool:
    """Return True if a statement answers the question: a name to `who`, a number to `how` and `when`."""
    asked = set(question.lower().split())
    return not (asked & {"who", "whose"} and _has_number(given)) and not (
        asked & {"how", "when"} and not _has_number(given)
    )


def same_kind(one: Statement, other: Statement) -> bool:
    """Return True if both give a number, or both a name; one without a value is of any kind."""
    return not one.values or _has_number(one) == _has_number(other)


def _has_number(given: Statement) -> bool:
    return any(each[0].isdigit() for each in given.values)


def nearest(asked: Statement, text: str, subject: str) -> Statement | None:
    """Return the statement in a text about the same subject and topic; None if it has none."""
    there = [statement(each, subject) for each in sentences(text) if subject.lower() in each.lower()]
    best = max(there, key=lambda each: (likeness(asked, each), -len(asked.about ^ each.about)), default=None)
    return best if best is not None and likeness(asked, best) >= ABOUT_THE_SAME else None


def subject_of(text: str, titles: Sequence[str]) -> str:
    """Return the subject of a text: the longest run of its words that several titles have; empty if none."""
    row = re.sub(r"[^\w' -]", " ", text).split()
    lower = [title.lower() for title in titles]
    runs = (" ".join(row[begin:end]) for end in range(len(row) + 1) for begin in range(end - 1))
    known = [run for run in runs if sum(run.lower() in title for title in lower) >= SEVERAL]
    return max(known, key=len, default="")


# --- the corpus and its index ----------------------------------------------------------------------

CORPUS = Path(__file__).with_name("corpus.jsonl")
ENGINE = "fts5"


class Document(msgspec.Struct, frozen=True):
    """One document: a few sentences, published in a year."""

    id: str
    title: str
    source: str
    kind: str
    """`correction` for a notice in which a source corrects itself."""
    year: int
    text: str


@cache
def documents() -> dict[str, Document]:
    """Return every document by its id."""
    lines = CORPUS.read_bytes().splitlines()
    return {each.id: each for each in (msgspec.json.decode(line, type=Document) for line in lines)}


class Index:
    """Finds documents by words; any thread may ask."""

    def __init__(self, engine: str = ENGINE) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._db.execute(f"CREATE VIRTUAL TABLE found USING {engine} (id UNINDEXED, said)")
        except sqlite3.OperationalError as error:
            self._db.close()
            raise Permanent(
                f"this Python's SQLite ({sqlite3.sqlite_version}) has no {engine}, which the research fleet "
                "searches with: use a Python whose sqlite3 is built with it"
            ) from error
        rows = ((each.id, " ".join(words(f"{each.title}. {each.text}"))) for each in documents().values())
        self._db.executemany("INSERT INTO found VALUES (?, ?)", rows)

    def matches(self, question: str, limit: int) -> list[Document]:
        """Return the documents with the most of the question's rare words, best first."""
        asked = " OR ".join(f'"{word}"' for word in dict.fromkeys(words(question)))
        if not asked:
            return []
        with self._lock:
            rows = self._db.execute(
                "SELECT id FROM found WHERE found MATCH ? ORDER BY bm25(found), id LIMIT ?", (asked, limit)
            ).fetchall()
        return [documents()[row[0]] for row in rows]


@cache
def _made() -> Index:
    return Index()


_making = threading.Lock()


def index() -> Index:
    """Return the process's one index. Raises Permanent where SQLite cannot search."""
    with _making:
        return _made()
