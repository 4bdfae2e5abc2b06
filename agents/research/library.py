"""The corpus, and its index: SQLite FTS5 in memory, built by a process when it first searches.

`corpus.jsonl` is indexed in some milliseconds, so that no file has to be kept, shared or brought up to date.
"""

import sqlite3
import threading
from functools import cache
from pathlib import Path

import msgspec

from agents.research.reading import words
from mesh.agent import Permanent

CORPUS = Path(__file__).with_name("corpus.jsonl")
ENGINE = "fts5"


class Document(msgspec.Struct, frozen=True):
    """One document: a few sentences that somebody published in a year."""

    id: str
    title: str
    source: str
    kind: str
    """`correction` for a notice by which a source takes back what it said."""
    year: int
    text: str


@cache
def documents() -> dict[str, Document]:
    """Return every document by its id."""
    lines = CORPUS.read_bytes().splitlines()
    return {each.id: each for each in (msgspec.json.decode(line, type=Document) for line in lines)}


class Index:
    """Finds documents by words; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._db.execute(f"CREATE VIRTUAL TABLE found USING {ENGINE} (id UNINDEXED, said)")
        except sqlite3.OperationalError as error:
            self._db.close()
            raise Permanent(
                f"this Python's SQLite ({sqlite3.sqlite_version}) has no {ENGINE}, which the research fleet "
                "searches with: use a Python whose sqlite3 is built with it"
            ) from error
        rows = ((each.id, " ".join(words(f"{each.title}. {each.text}"))) for each in documents().values())
        self._db.executemany("INSERT INTO found VALUES (?, ?)", rows)

    def matches(self, question: str, limit: int) -> list[Document]:
        """Return the documents that have most of the question's rare words, the best first."""
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
