"""The provider's records: one SQLite file that every process of the fleet opens for itself.

The first process to come creates and fills it, under an exclusive transaction; the others wait. After
that readers and one writer do not block each other (write-ahead log).
"""

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from mesh.agent.failures import Retry

VARIABLE = "SUPPORT_DB"
BUSY_S = 20.0
"""How long a connection waits for another's transaction."""
_SEEDED = 1
_WAITED_FOR_NOTHING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def path() -> Path:
    """Return where the records are: `SUPPORT_DB`, or a directory of this user's for temporary things."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return Path(tempfile.gettempdir()) / f"handoff-mesh-{os.getuid()}" / "support.db"


@contextmanager
def connected() -> Iterator[sqlite3.Connection]:
    """Yield a connection of the caller's own, to a database that is there and filled.

    Statements commit one by one, unless they are in a `transaction`. Raises Retry if others kept the
    file locked for `BUSY_S`.
    """
    file = path()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)) as db:
            db.row_factory = sqlite3.Row
            if _version(db) != _SEEDED:
                _create(db)
            db.execute("PRAGMA foreign_keys = ON")
            yield db
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in _WAITED_FOR_NOTHING:
            raise Retry("the support database is busy") from error
        raise


@contextmanager
def transaction(db: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Make what is done inside happen wholly or not at all."""
    db.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def once(db: sqlite3.Connection, key: str, tool: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do something unless it was done under this key; return what came of it, then or now.

    The effect and its record are one transaction: there is no moment at which only one of them is true.
    """
    with transaction(db):
        row = db.execute("SELECT result FROM effects WHERE idempotency_key = ?", (key,)).fetchone()
        if row is not None:
            found: dict[str, Any] = msgspec.json.decode(row["result"])
            return found
        result = do()
        db.execute("INSERT INTO effects VALUES (?, ?, ?)", (key, tool, msgspec.json.encode(result).decode()))
        return result


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _create(db: sqlite3.Connection) -> None:
    """Create and fill the tables, if no other process was faster; then switch to the write-ahead log."""
    with transaction(db, "EXCLUSIVE"):
        if _version(db) != _SEEDED:
            for name in ("schema.sql", "seed.sql"):
                for statement in _statements(files(__package__).joinpath(name).read_text(encoding="utf-8")):
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {_SEEDED}")
    db.execute("PRAGMA journal_mode = WAL")


def _statements(script: str) -> Iterator[str]:
    """Yield a script's statements: `executescript` would commit before the first."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
