"""The index of requests in SQLite, projected from the log, for `mesh request ls` and the page.

It is never a source of truth. It records how far it has read, and continues from there. It is rebuilt from
the log if it is missing, damaged, of another form, or of another log. A request's row is a function of its
events, and whatever can be filtered by exactly is a tag of the row: `status:open`, `agent:billing`, `cost:7`
(10^7 nano-dollars or more). Pages are read by keyset: a later page costs as much as the first.

Any number of processes may read and write one file. Rows only become newer, hand-overs are counted by their
place in the log, and a part of the log is written only after the part before it.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mesh.ops.hops import RequestCounts
from mesh.ops.roster import Frozen
from mesh.ops.rows import EdgeCount, IndexRow, Listed, fork_tag
from mesh.ops.where import Filter

_FORM = 10
"""Version of the tables' form. A file of another form is rebuilt."""
_FORKS = 100
"""The most requests that are named as forks of one."""
_FEW = 20_000
"""How many rows are checked one by one if no filter matches fewer: tens of milliseconds."""
_FIELDS = tuple(name for name in Listed.__struct_fields__ if name != "id")
_TABLES = """
CREATE TABLE place (form INTEGER, log TEXT, since INTEGER, seq INTEGER);
CREATE TABLE requests (
    id INTEGER PRIMARY KEY, request TEXT NOT NULL UNIQUE, last INTEGER NOT NULL, status TEXT NOT NULL,
    holder TEXT NOT NULL, client TEXT NOT NULL, frozen BLOB, conversation TEXT NOT NULL,
    opened INTEGER NOT NULL, at INTEGER NOT NULL, events INTEGER NOT NULL, type TEXT NOT NULL,
    nano_dollars INTEGER NOT NULL, tokens INTEGER NOT NULL, model_calls INTEGER NOT NULL,
    refusals INTEGER NOT NULL, rule TEXT NOT NULL, trail TEXT NOT NULL, text TEXT NOT NULL,
    hops INTEGER NOT NULL, depth INTEGER NOT NULL, ping_pong INTEGER NOT NULL,
    words TEXT NOT NULL, tags TEXT NOT NULL, counted BLOB NOT NULL
);
CREATE INDEX requests_opened ON requests
    (opened, id, status, depth, events, hops, ping_pong, refusals, nano_dollars);
CREATE INDEX requests_last ON requests (last);
CREATE INDEX requests_conversation ON requests (conversation) WHERE conversation != '';
CREATE TABLE edges (
    giver TEXT NOT NULL, taker TEXT NOT NULL, passed INTEGER NOT NULL, refused INTEGER NOT NULL,
    PRIMARY KEY (giver, taker)
) WITHOUT ROWID;
CREATE TABLE hops (
    giver TEXT NOT NULL, taker TEXT NOT NULL, bucket INTEGER NOT NULL, id INTEGER NOT NULL,
    passed INTEGER NOT NULL, us INTEGER NOT NULL, waited_us INTEGER NOT NULL,
    timed INTEGER NOT NULL, queued_us INTEGER NOT NULL, nano_dollars INTEGER NOT NULL,
    PRIMARY KEY (giver, taker, bucket, id)
) WITHOUT ROWID;
CREATE TABLE refusals (
    rule TEXT NOT NULL, giver TEXT NOT NULL, taker TEXT NOT NULL, id INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    PRIMARY KEY (rule, giver, taker, id)
) WITHOUT ROWID;
CREATE TABLE tags (tag TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (tag, id)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5 (text, content='', prefix='3 4 5');
"""


# --- the tables -----------------------------------------------------------------------------------


class Overtaken(Exception):
    """The index is no longer where the writer left it: another process rebuilt it."""


class RequestIndex:
    """The tables, in a file. It may be used from any thread, and by several processes at once."""

    def __init__(self, path: Path, log: str) -> None:
        """Open the file. It is rebuilt unless it continues from a place in this very log.

        Args:
            log: an identifier of the log.

        Raises OSError and sqlite3.Error if no file can be used.
        """
        self._path, self._log = path, log
        self._at_writing, self._at_reading = threading.Lock(), threading.Lock()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        try:
            self._open()
            self._make_unless(self._fits)
        except sqlite3.OperationalError:
            self.close()
            raise
        except sqlite3.DatabaseError:  # not a database, or a damaged one
            self.replace()

    def _open(self) -> None:
        self._writing, self._reading = (
            sqlite3.connect(self._path, check_same_thread=False, timeout=30, isolation_level=None)
            for _ in range(2)
        )
        for opened in (self._writing, self._reading):
            opened.execute("PRAGMA journal_mode = WAL")
            opened.execute("PRAGMA synchronous = NORMAL")  # what a crash loses at the end is read again
            opened.execute("PRAGMA cache_size = -65536")  # KiB

    def _fits(self, writing: sqlite3.Connection) -> bool:
        try:
            place = writing.execute("SELECT form, log FROM place").fetchone()
        except sqlite3.OperationalError:
            return False
        return bool(place == (_FORM, self._log))

    def replace(self) -> None:
        """Replace a damaged file by a new one. A process that has the old one open keeps it."""
        with self._at_writing, self._at_reading:
            self._writing.close()
            self._reading.close()
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            self._path.touch(mode=0o600)
            self._open()
        self._make_unless(self._fits)

    def remake(self, since: int = 1) -> None:
        """Throw everything away, and begin at a place in the log."""
        self._make_unless(lambda writing: False, since)

    def _make_unless(self, fits: Callable[[sqlite3.Connection], bool], since: int = 1) -> None:
        with self._transaction() as writing:
            if fits(writing):
                return
            for table in ("place", "requests", "edges", "hops", "refusals", "tags", "words"):
                writing.execute(f"DROP TABLE IF EXISTS {table}")
            for statement in _TABLES.split(";\n"):
                writing.execute(statement)
            writing.execute("INSERT INTO place VALUES (?, ?, ?, ?)", (_FORM, self._log, since, since - 1))

    def close(self) -> None:
        """Close the file once no thread uses it: SQLite crashes when a used connection is closed."""
        for opened, used in ((self._writing, self._at_writing), (self._reading, self._at_reading)):
            with used:
                opened.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the writing connection; the block is written as a whole, or not at all."""
        with self._at_writing:  # a thread continues when the task that awaits it is cancelled
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
        """Return up to which place in the log everything is in the index."""
        return int(self._read("SELECT seq FROM place")[0][0])

    @property
    def since(self) -> int:
        """Return where in the log the index begins: a request without a later event is not in it."""
        return int(self._read("SELECT since FROM place")[0][0])

    @property
    def is_whole(self) -> bool:
        """Return True if the index begins where the log began."""
        return self.since == 1

    def put(
        self,
        rows: Iterable[tuple[int, IndexRow]],
        after: int,
        seq: int,
        edges: Iterable[tuple[int, EdgeCount]] = (),
    ) -> None:
        """Write requests as a part of the log leaves them, each with the place of its first event.

        Args:
            after: the place before that part.
            seq: the last place of that part.
            edges: hand-overs in that part, each with its place.

        Raises Overtaken if the index does not reach as far as `after`.
        """
        with self._transaction() as writing:
            reached: int = writing.execute("SELECT seq FROM place").fetchone()[0]
            if reached < after or not self._fits(writing):
                raise Overtaken
            writing.executemany(
                "INSERT INTO edges VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET passed = passed + excluded.passed, refused = refused + excluded.refused",
                [edge for place, edge in edges if place > reached],
            )
            for first, row in rows:
                self._put(writing, first, row)
            writing.execute("UPDATE place SET seq = max(seq, ?)", (seq,))

    def _put(self, writing: sqlite3.Connection, first: int, row: IndexRow) -> None:
        request = row.listed.request
        select = "SELECT id, last, tags, counted FROM requests WHERE request = ?"
        known = writing.execute(select, (request,)).fetchone()
        fields = {name: getattr(row.listed, name) for name in _FIELDS} | {"tags": " ".join(sorted(row.tags))}
        fields["conversation"] = row.listed.conversation or ""
        fields["frozen"] = None if row.listed.frozen is None else msgspec.json.encode(row.listed.frozen)
        fields["counted"] = msgspec.json.encode(row.counts)
        counted = RequestCounts()
        if known is None:
            id_, before = first, set[str]()
            fields |= {"id": id_, "words": row.words}
            marks = ", ".join("?" * len(fields))
            columns = ", ".join(fields)
            writing.execute(f"INSERT INTO requests ({columns}) VALUES ({marks})", (*fields.values(),))
            writing.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (id_, row.words))
        elif known[1] > row.listed.last:
            return  # another process is further
        else:
            id_, before = known[0], set(known[2].split())
            counted = msgspec.json.decode(known[3], type=RequestCounts)
            for fixed in ("request", "text"):
                del fields[fixed]
            sets = ", ".join(f"{name} = ?" for name in fields)
            writing.execute(f"UPDATE requests SET {sets} WHERE id = ?", (*fields.values(), id_))
        writing.executemany(
            "DELETE FROM tags WHERE tag = ? AND id = ?", [(tag, id_) for tag in before - row.tags]
        )
        writing.executemany("INSERT INTO tags VALUES (?, ?)", [(tag, id_) for tag in row.tags - before])
        _count(writing, id_, counted, row.counts)

    def forget(self, before: int) -> int:
        """Remove the requests with no event from a place in the log on; return how many."""
        with self._transaction() as writing:
            gone = writing.execute(
                "SELECT id, tags, words, counted FROM requests WHERE last < ? ORDER BY last LIMIT 1000",
                (before,),
            ).fetchall()
            for id_, tags, words, counted in gone:
                writing.executemany(
                    "DELETE FROM tags WHERE tag = ? AND id = ?", [(tag, id_) for tag in tags.split()]
                )
                writing.execute(
                    "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (id_, words)
                )
                _count(writing, id_, msgspec.json.decode(counted, type=RequestCounts), RequestCounts())
                writing.execute("DELETE FROM requests WHERE id = ?", (id_,))
        return len(gone)

    # --- reading ----------------------------------------------------------------------------------

    def page(
        self, wanted: Filter, *, before: int | None = None, limit: int = -1, by_change: bool = False
    ) -> list[Listed]:
        """Return up to `limit` requests (-1: all), newest first.

        Args:
            before: only requests with a smaller id, such as that of the previous page's last.
            by_change: True to order by the newest event instead; then there are no further pages.
        """
        tables, key, clauses, values = self._conditions(wanted, by_change)
        if before is not None:
            clauses.append(f"{key} < ?")
            values.append(before)
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        columns = ", ".join(f"r.{name}" for name in (*_FIELDS, "id"))
        order = "r.last" if by_change else key
        select = f"SELECT {columns} FROM {tables} {where} ORDER BY {order} DESC LIMIT ?"
        return [_row(each) for each in self._read(select, *values, limit)]

    def among(self, requests: Iterable[str], wanted: Filter) -> set[str]:
        """Return which of these requests are in the index, and wanted."""
        tables, _, clauses, values = self._conditions(wanted, by_change=False)
        where = " AND ".join([*clauses, "r.request IN (SELECT value FROM json_each(?))"])
        names = msgspec.json.encode(list(requests)).decode()
        return {
            str(name)
            for (name,) in self._read(f"SELECT r.request FROM {tables} WHERE {where}", *values, names)
        }

    def _conditions(self, wanted: Filter, by_change: bool) -> tuple[str, str, list[str], list[Any]]:
        """Return the tables in reading order, the column of the order, the conditions, and their values.

        It begins with the rarest filter, and checks the rows found for all others. With order by newest event
        it begins with that order if no filter is rare: then most rows that it checks match.
        """
        is_id, words, is_prefix = wanted.is_id, wanted.words, wanted.is_prefix
        match = " ".join(f'"{word}"' for word in words) + ("*" if is_prefix else "")
        tags = wanted.all_tags
        counted = {tag: self.count(tag) for tag in tags}
        fewest = min(counted, key=counted.__getitem__, default=None)
        tables, key, clauses, values = "requests r", "r.id", list[str](), list[Any]()
        if words and (fewest is None or counted[fewest] == _FEW):
            tables, key = "words w CROSS JOIN requests r ON r.id = w.rowid", "w.rowid"
            clauses.append("w.words MATCH ?")
            values.append(match)
        elif fewest is not None and not (by_change and counted[fewest] == _FEW):
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
            column = "r.request" if few else "+r.request"  # with `+` the order is used, not the index
            clauses.append(f"{column} >= ? AND {column} < ?")
            values += within
        elif wanted.text and not words:
            clauses.append("0")  # no word of it could be found
        if wanted.conversation:
            clauses.append("r.conversation = ?")
            values.append(wanted.conversation)
        if wanted.nano_dollars:
            clauses.append("r.nano_dollars >= ?")
            values.append(wanted.nano_dollars)
        for at, is_so, order in ((wanted.since, ">=", "ASC"), (wanted.until, "<=", "DESC")):
            if at is not None and not self.is_whole:
                clauses.append(f"r.opened {is_so} ?")
                values.append(at)
            elif at is not None:  # ids grow with time, so one bounds the other
                bound = f"SELECT id FROM requests WHERE opened {is_so} ? ORDER BY opened {order} LIMIT 1"
                clauses.append(f"r.opened {is_so} ? AND {key} {is_so} ({bound})")
                values += [at, at]
        return tables, key, clauses, values

    @contextlib.contextmanager
    def reading_of(self, wanted: Filter) -> "Iterator[SubsetReader]":
        """Give what reads the tables as they are now, and knows which requests are wanted.

        It has a connection of its own: whoever else reads does not wait for long sums.
        """
        tables, key, clauses, values = self._conditions(wanted, by_change=False)
        with contextlib.closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as reading:
            reading.execute("PRAGMA temp_store = MEMORY")
            reading.execute("CREATE TEMP TABLE wanted (id INTEGER PRIMARY KEY)")
            reading.execute("BEGIN")  # all that is read is of one moment
            if clauses:
                select = f"SELECT {key} FROM {tables} WHERE {' AND '.join(clauses)}"
                reading.execute(f"INSERT INTO wanted {select}", values)
            yield SubsetReader(reading, is_all=not clauses)

    def count(self, tag: str) -> int:
        """Return how many requests have a tag, at most `_FEW`."""
        return self._few("SELECT 1 FROM tags WHERE tag = ?", tag)

    def _few(self, select: str, *values: str) -> int:
        """Return how many rows match a filter, at most `_FEW`."""
        return int(self._read(f"SELECT count(*) FROM ({select} LIMIT {_FEW})", *values)[0][0])

    def forks_of(self, request: str) -> tuple[str, ...]:
        """Return the requests that were forked from a request, the newest first; no more than 100."""
        found = self.page(Filter(tags=(fork_tag(request),)), limit=_FORKS)
        return tuple(each.request for each in found)

    def edges(self) -> list[EdgeCount]:
        """Return how often work passed, or was refused, between each pair of names since the index began."""
        return [EdgeCount(*each) for each in self._read("SELECT giver, taker, passed, refused FROM edges")]

    def named(self, kind: str) -> list[str]:
        """Return the values of a kind of tag, in order: `agent`, `client`, `rule` …"""
        found, at = list[str](), f"{kind}:"
        while tag := self._read("SELECT min(tag) FROM tags WHERE tag > ? AND tag < ?", at, f"{kind};")[0][0]:
            at = str(tag)
            found.append(at.partition(":")[2])
        return found

    def _read(self, select: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        with self._at_reading:
            return self._reading.execute(select, values).fetchall()


class SubsetReader:
    """Reads the tables for some of the requests."""

    def __init__(self, reading: sqlite3.Connection, *, is_all: bool) -> None:
        self._reading, self._is_all = reading, is_all

    def read(self, select: str, *values: Any, key: str = "id") -> Sequence[tuple[Any, ...]]:
        """Return the rows of a SELECT in which `{wanted}` stands for the condition.

        Args:
            key: the column that has a request's id.
        """
        condition = "1" if self._is_all else f"+{key} IN (SELECT id FROM wanted)"
        return self._reading.execute(select.format(wanted=condition), values).fetchall()


def _count(writing: sqlite3.Connection, id_: int, before: RequestCounts, now: RequestCounts) -> None:
    """Put what is counted of a request in the place of what was counted before."""
    gone, more = set(before.hops) - set(now.hops), set(now.hops) - set(before.hops)
    writing.executemany(
        "DELETE FROM hops WHERE giver = ? AND taker = ? AND bucket = ? AND id = ?",
        [(*hop[:3], id_) for hop in gone],
    )
    writing.executemany(
        "INSERT INTO hops VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [(*hop[:3], id_, *hop[3:]) for hop in more]
    )
    gone_, more_ = set(before.refusals) - set(now.refusals), set(now.refusals) - set(before.refusals)
    writing.executemany(
        "DELETE FROM refusals WHERE rule = ? AND giver = ? AND taker = ? AND id = ?",
        [(*each[:3], id_) for each in gone_],
    )
    writing.executemany(
        "INSERT INTO refusals VALUES (?, ?, ?, ?, ?)", [(*each[:3], id_, each[3]) for each in more_]
    )


def _row(values: Sequence[Any]) -> Listed:
    fields = dict(zip((*_FIELDS, "id"), values, strict=True))
    if fields["frozen"] is not None:
        fields["frozen"] = msgspec.json.decode(fields["frozen"], type=Frozen)
    return Listed(**fields | {"conversation": fields["conversation"] or None})
