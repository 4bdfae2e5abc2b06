"""Records of a reference fleet: one SQLite file that every process of the fleet opens for itself.

The first process to come creates and fills it from `schema.sql` and `seed.sql` of the fleet's folder, under
an exclusive transaction; the others wait. After that readers and one writer do not block each other
(write-ahead log). The schema has a table `effects` (idempotency_key, tool, result), which `once` keeps.
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

from mesh.agent import Retry, ToolError

BUSY_S = 20.0
"""How long a connection waits for another's transaction."""
_SEEDED = 1
_WAITED_FOR_NOTHING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class Records:
    """Where a fleet's records are, and how to open them.

    Args:
        package: the fleet's, with `schema.sql` and `seed.sql` in it; its last part is the fleet's name.
        variable: of the environment, names the file.
    """

    def __init__(self, package: str, variable: str) -> None:
        self._package, self._variable = package, variable
        self._fleet = package.rpartition(".")[2]

    def path(self) -> Path:
        """Return the file: the variable's, or one in a directory of this user's for temporary things."""
        named = os.environ.get(self._variable)
        if named:
            return Path(named)
        return Path(tempfile.gettempdir()) / f"handoff-mesh-{os.getuid()}" / f"{self._fleet}.db"

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection of the caller's own, to a database that is there and filled.

        Statements commit one by one, unless they are in a `transaction`. Raises Retry if others kept the
        file locked for `BUSY_S`.
        """
        file = self.path()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with closing(sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)) as db:
                db.row_factory = sqlite3.Row
                if _version(db) != _SEEDED:
                    self._create(db)
                db.execute("PRAGMA foreign_keys = ON")
                yield db
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in _WAITED_FOR_NOTHING:
                raise Retry(f"the {self._fleet} database is busy") from error
            raise

    def _create(self, db: sqlite3.Connection) -> None:
        """Create and fill the tables, if no other process was faster; then switch to the write-ahead log."""
        with transaction(db, "EXCLUSIVE"):
            if _version(db) != _SEEDED:
                for name in ("schema.sql", "seed.sql"):
                    script = files(self._package).joinpath(name).read_text(encoding="utf-8")
                    for statement in _statements(script):
                        db.execute(statement)
                db.execute(f"PRAGMA user_version = {_SEEDED}")
        db.execute("PRAGMA journal_mode = WAL")


@contextmanager
def transaction(db: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Make the block happen wholly or not at all."""
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
        found = done(db, key)
        if found is None:
            found = do()
            recorded = (key, tool, msgspec.json.encode(found).decode())
            db.execute("INSERT INTO effects VALUES (?, ?, ?)", recorded)
        return found


def done(db: sqlite3.Connection, key: str) -> dict[str, Any] | None:
    """Return what came of the effect with this key; None if it did not happen."""
    row = db.execute("SELECT result FROM effects WHERE idempotency_key = ?", (key,)).fetchone()
    if row is None:
        return None
    result: dict[str, Any] = msgspec.json.decode(row["result"])
    return result


def the_row(db: sqlite3.Connection, missing: str, query: str, *values: Any) -> sqlite3.Row:
    """Return a query's first row. Raises ToolError with the text `missing` if there is none."""
    row: sqlite3.Row | None = db.execute(query, values).fetchone()
    if row is None:
        raise ToolError(missing)
    return row


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> Iterator[str]:
    """Yield a script's statements: `executescript` would commit before the first."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
