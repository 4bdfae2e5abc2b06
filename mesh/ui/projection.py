"""The list of all requests in SQLite, projected from the log, so that every page of it is quick.

It is never a source of truth. It holds how far it has read, and goes on from there; it is made anew from the
log where it is missing, damaged, of another form, or of another log. A request's row is a function of its
events, and what can be filtered by exactly is a tag of the row: `status:open`, `agent:billing`, `cost:7`
(10^7 nano-dollars or more). Pages are read by keyset, the newest request first: a later page costs what the
first one does.
"""

import contextlib
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

_FORM = 5
"""The form of the tables. A file of another form is made again."""
_FEW = 20_000
"""Rows that are looked at one by one where no filter has fewer: tens of milliseconds."""
COSTS = (0, 6, 7, 8, 9, 10, 11)
"""Powers of ten, of nano-dollars, that have a tag; 0 is any cost at all."""
_WORD = re.compile(r"[^\W_]+")
_PREFIX = 3
"""The least letters that find words by their beginning. Fewer are in most texts."""
_AN_ID = re.compile(r"[a-z][a-z0-9-]*_[0-9A-Z]{3,26}")
_TABLES = """
CREATE TABLE place (form INTEGER, log TEXT, seq INTEGER);
CREATE TABLE requests (
    id INTEGER PRIMARY KEY, request TEXT NOT NULL UNIQUE, last INTEGER NOT NULL, status TEXT NOT NULL,
    holder TEXT NOT NULL, client TEXT NOT NULL, frozen INTEGER NOT NULL, conversation TEXT NOT NULL,
    opened INTEGER NOT NULL, at INTEGER NOT NULL, events INTEGER NOT NULL, type TEXT NOT NULL,
    nano_dollars INTEGER NOT NULL, tokens INTEGER NOT NULL, model_calls INTEGER NOT NULL,
    refusals INTEGER NOT NULL, rule TEXT NOT NULL, trail TEXT NOT NULL, text TEXT NOT NULL,
    words TEXT NOT NULL, tags TEXT NOT NULL
);
CREATE INDEX requests_opened ON requests (opened);
CREATE INDEX requests_last ON requests (last);
CREATE TABLE edges (
    giver TEXT NOT NULL, taker TEXT NOT NULL, passed INTEGER NOT NULL, refused INTEGER NOT NULL,
    PRIMARY KEY (giver, taker)
) WITHOUT ROWID;
CREATE TABLE tags (tag TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (tag, id)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5 (said, content='', prefix='3 4 5');
"""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as the list shows it."""

    request: str
    last: int
    """Place in the log of its newest event."""
    status: str
    """`open`, how it ended, or `unreadable`."""
    holder: str
    client: str
    frozen: bool
    conversation: str = ""
    opened: int
    """UTC µs of its first event."""
    at: int
    """UTC µs of its newest event."""
    events: int
    type: str
    """Of the newest event."""
    nano_dollars: int = 0
    tokens: int = 0
    model_calls: int = 0
    refusals: int = 0
    rule: str = ""
    """By which the newest refusal was."""
    trail: str = ""
    """Everybody who held the work, in order; the newest of many."""
    text: str = ""
    """What its client wrote; only the beginning of a long text."""
    words: str = ""
    """What can be looked for, as `words_of` returns it."""
    tags: str = ""
    """Apart by spaces, in order."""
    id: int = 0
    """Place in the log of its first event that was read."""


def words_of(*texts: str) -> str:
    """Return the words of texts apart by spaces, without case and accents."""
    plain = unicodedata.normalize("NFKD", " ".join(texts).casefold())
    return " ".join(_WORD.findall("".join(char for char in plain if not unicodedata.combining(char))))


_FIELDS = tuple(name for name in Listed.__struct_fields__ if name != "id")


class EdgeCount(NamedTuple):
    """How often work passed from one name to another, and how often it was refused."""

    giver: str
    taker: str
    passed: int
    refused: int


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests are wanted: those to which all of it applies."""

    tags: tuple[str, ...] = ()
    text: str = ""
    """Words that the client wrote (their beginnings will do), or the beginning of an id."""
    nano_dollars: int = 0
    """At least."""
    since: int | None = None
    """Opened at this time (UTC µs) or later."""
    until: int | None = None


class Projection:
    """The tables, in a file. It may be used from any thread."""

    def __init__(self, path: Path, log: str) -> None:
        """Open the file. It is made again unless it goes on from a place in this very log.

        Args:
            log: what tells the log from any other one.
        """
        self._path, self._log = path, log
        self._at_writing, self._at_reading = threading.Lock(), threading.Lock()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        try:
            self._open()
            fits = self._fits()
        except sqlite3.DatabaseError:  # it is no database, or a damaged one
            self.close()
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            path.touch(mode=0o600)
            self._open()
            fits = False
        if not fits:
            self.remake()

    def _open(self) -> None:
        self._writing, self._reading = (
            sqlite3.connect(self._path, check_same_thread=False, timeout=30, isolation_level=None)
            for _ in range(2)
        )
        for opened in (self._writing, self._reading):
            opened.execute("PRAGMA journal_mode = WAL")
            opened.execute("PRAGMA synchronous = NORMAL")  # what a crash takes from the end is read again
            opened.execute("PRAGMA cache_size = -65536")  # KiB

    def _fits(self) -> bool:
        try:
            place = self._writing.execute("SELECT form, log FROM place").fetchone()
        except sqlite3.OperationalError:
            return False
        return bool(place == (_FORM, self._log))

    def remake(self) -> None:
        """Throw everything away, and begin at the log's beginning."""
        with self._transaction() as writing:
            for table in ("place", "requests", "edges", "tags", "words"):
                writing.execute(f"DROP TABLE IF EXISTS {table}")
            for statement in _TABLES.split(";\n"):
                writing.execute(statement)
            writing.execute("INSERT INTO place VALUES (?, ?, 0)", (_FORM, self._log))

    def close(self) -> None:
        """Close the file, once no thread is at it: SQLite crashes when a connection ends under its user."""
        for opened, used in ((self._writing, self._at_writing), (self._reading, self._at_reading)):
            with used:
                opened.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the connection that writes; all of the block is written, or nothing."""
        with self._at_writing:  # a thread goes on when the task that waited for it is cancelled
            self._writing.execute("BEGIN IMMEDIATE")
            try:
                yield self._writing
            except BaseException:
                self._writing.execute("ROLLBACK")
                raise
            self._writing.execute("COMMIT")

    # --- writing ----------------------------------------------------------------------------------

    @property
    def seq(self) -> int:
        """How far in the log everything is in the list."""
        return int(self._read("SELECT seq FROM place")[0][0])

    def put(self, rows: Iterable[tuple[int, Listed]], seq: int, edges: Iterable[EdgeCount] = ()) -> None:
        """Write requests as they stand now, each with the place of the event that it may be new by.

        Args:
            seq: how far in the log everything is in the list then.
            edges: hand-overs to count, of all events since the last call.
        """
        with self._transaction() as writing:
            writing.executemany(
                "INSERT INTO edges VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET passed = passed + excluded.passed, refused = refused + excluded.refused",
                edges,
            )
            for first, row in rows:
                self._put(writing, first, row)
            writing.execute("UPDATE place SET seq = ?", (seq,))

    def _put(self, writing: sqlite3.Connection, first: int, row: Listed) -> None:
        known = writing.execute("SELECT id, tags FROM requests WHERE request = ?", (row.request,)).fetchone()
        values = [getattr(row, name) for name in _FIELDS]
        if known is None:
            id_, before = first, set[str]()
            marks = ", ".join("?" * (len(_FIELDS) + 1))
            writing.execute(
                f"INSERT INTO requests (id, {', '.join(_FIELDS)}) VALUES ({marks})", (id_, *values)
            )
            writing.execute("INSERT INTO words (rowid, said) VALUES (?, ?)", (id_, row.words))
        else:
            id_, before = known[0], set(known[1].split())
            changed = [name for name in _FIELDS if name not in ("request", "text", "words")]
            sets = ", ".join(f"{name} = ?" for name in changed)
            writing.execute(
                f"UPDATE requests SET {sets} WHERE id = ?", (*(getattr(row, name) for name in changed), id_)
            )
        after = set(row.tags.split())
        writing.executemany(
            "DELETE FROM tags WHERE tag = ? AND id = ?", [(tag, id_) for tag in before - after]
        )
        writing.executemany("INSERT INTO tags VALUES (?, ?)", [(tag, id_) for tag in after - before])

    def forget(self, before: int) -> int:
        """Take out the requests whose newest event stood before a place in the log; return how many."""
        with self._transaction() as writing:
            gone = writing.execute(
                "SELECT id, tags, words FROM requests WHERE last < ? ORDER BY last LIMIT 1000", (before,)
            ).fetchall()
            for id_, tags, words in gone:
                writing.executemany(
                    "DELETE FROM tags WHERE tag = ? AND id = ?", [(tag, id_) for tag in tags.split()]
                )
                writing.execute(
                    "INSERT INTO words (words, rowid, said) VALUES ('delete', ?, ?)", (id_, words)
                )
                writing.execute("DELETE FROM requests WHERE id = ?", (id_,))
        return len(gone)

    # --- reading ----------------------------------------------------------------------------------

    def page(self, wanted: Filter, *, before: int | None = None, limit: int) -> list[Listed]:
        """Return up to `limit` requests, the newest first.

        Args:
            before: only those with a smaller id: the last one of the page before.
        """
        tables, key, clauses, values = self._conditions(wanted)
        if before is not None:
            clauses.append(f"{key} < ?")
            values.append(before)
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        columns = ", ".join(f"r.{name}" for name in (*_FIELDS, "id"))
        select = f"SELECT {columns} FROM {tables} {where} ORDER BY {key} DESC LIMIT ?"
        return [_row(each) for each in self._read(select, *values, limit)]

    def _conditions(self, wanted: Filter) -> tuple[str, str, list[str], list[Any]]:
        """Return tables to read in this order, the column of the order, conditions, and their values.

        It begins with what fewest requests have, and looks at each of these for all else.
        """
        is_id = bool(_AN_ID.fullmatch(wanted.text))
        words = [] if is_id else words_of(wanted.text).split()
        is_prefix = bool(words) and len(words[-1]) >= _PREFIX
        match = " ".join(f'"{word}"' for word in words) + ("*" if is_prefix else "")
        tags = list(wanted.tags)
        if wanted.nano_dollars:
            tags.append(f"cost:{max(power for power in COSTS if 10**power <= wanted.nano_dollars)}")
        counted = {tag: self.count(tag) for tag in tags}
        fewest = min(counted, key=counted.__getitem__, default=None)
        tables, key, clauses, values = "requests r", "r.id", list[str](), list[Any]()
        if words and (fewest is None or counted[fewest] == _FEW):
            tables, key = "words w CROSS JOIN requests r ON r.id = w.rowid", "w.rowid"
            clauses.append("w.words MATCH ?")
            values.append(match)
        elif fewest is not None:
            tables, key = "tags t CROSS JOIN requests r ON r.id = t.id", "t.id"
            clauses.append("t.tag = ?")
            values.append(fewest)
            tags.remove(fewest)
            for word in words:
                clauses.append("instr(' ' || r.words || ' ', ?) > 0")
                values.append(f" {word}" if is_prefix and word is words[-1] else f" {word} ")
        for tag in tags:
            clauses.append(f"EXISTS (SELECT 1 FROM tags WHERE tag = ? AND id = {key})")
            values.append(tag)
        if is_id:
            within = (wanted.text, f"{wanted.text}~")
            few = self._few("SELECT 1 FROM requests WHERE request >= ? AND request < ?", *within) < _FEW
            column = "r.request" if few else "+r.request"  # with `+` it goes by the order, not by the index
            clauses.append(f"{column} >= ? AND {column} < ?")
            values += within
        elif wanted.text and not words:
            clauses.append("0")  # it has no word that could be found
        if wanted.nano_dollars:
            clauses.append("r.nano_dollars >= ?")
            values.append(wanted.nano_dollars)
        for at, is_so, order in ((wanted.since, ">=", "ASC"), (wanted.until, "<=", "DESC")):
            if at is not None:  # ids grow with the time, so that one bounds the other
                bound = f"SELECT id FROM requests WHERE opened {is_so} ? ORDER BY opened {order} LIMIT 1"
                clauses.append(f"r.opened {is_so} ? AND {key} {is_so} ({bound})")
                values += [at, at]
        return tables, key, clauses, values

    def count(self, tag: str) -> int:
        """Return how many requests have a tag; of very many, `_FEW`."""
        return self._few("SELECT 1 FROM tags WHERE tag = ?", tag)

    def _few(self, select: str, *values: str) -> int:
        """Return how many rows a filter has, `_FEW` at most."""
        return int(self._read(f"SELECT count(*) FROM ({select} LIMIT {_FEW})", *values)[0][0])

    def edges(self) -> list[EdgeCount]:
        """Return between whom work passed, or was refused to, since the list began."""
        return [EdgeCount(*each) for each in self._read("SELECT giver, taker, passed, refused FROM edges")]

    def named(self, kind: str) -> list[str]:
        """Return what there is of a kind of tag, in order: `agent`, `client`, `rule` …"""
        found, at = list[str](), f"{kind}:"
        while tag := self._read("SELECT min(tag) FROM tags WHERE tag > ? AND tag < ?", at, f"{kind};")[0][0]:
            at = str(tag)
            found.append(at.partition(":")[2])
        return found

    def _read(self, select: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        with self._at_reading:
            return self._reading.execute(select, values).fetchall()


def _row(values: Sequence[Any]) -> Listed:
    fields = dict(zip((*_FIELDS, "id"), values, strict=True))
    return Listed(**fields | {"frozen": bool(fields["frozen"])})
