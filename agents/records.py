"""Records of a reference fleet: one SQLite file that every process of the fleet opens for itself.

A process that finds no file makes one from `schema.sql` and `seed.sql` of the fleet's folder, hidden from the
others; the first to finish puts it in place. So an existing file is complete, and readers and a writer do not
block each other in it (write-ahead log). The schema has a table `effects` (idempotency_key, tool, result),
which `once` maintains.
"""

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from mesh.agent import Retry, ToolError

BUSY_S = 20.0
"""How long a connection waits for another's transaction (s)."""
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
        """Return the file: the variable's, or one in this user's directory for temporary files."""
        named = os.environ.get(self._variable)
        if named:
            return Path(named)
        return Path(tempfile.gettempdir()) / f"handoff-mesh-{os.getuid()}" / f"{self._fleet}.db"

    @contextmanager
    def connected(self, *, busy_s: float = BUSY_S) -> Iterator[sqlite3.Connection]:
        """Yield a new connection to a database that exists and is filled.

        Statements commit one by one, unless they are in a `transaction`. Raises Retry if others kept the file
        locked for `busy_s`.
        """
        file = self.path()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            self._create(file)
        try:
            with closing(sqlite3.connect(file, timeout=busy_s, isolation_level=None)) as db:
                db.row_factory = sqlite3.Row
                db.execute("PRAGMA foreign_keys = ON")
                yield db
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in _WAITED_FOR_NOTHING:
                raise Retry(f"the {self._fleet} database is busy") from error
            raise

    def _create(self, file: Path) -> None:
        """Make the complete database in a separate folder, and link it into place unless there is one by now.

        Switching to the write-ahead log turns a read into a write. While another connection uses the file,
        SQLite refuses that at once, without waiting; in the separate folder there is no other.
        """
        with tempfile.TemporaryDirectory(prefix=f"{file.name}.", dir=file.parent) as directory:
            made = Path(directory) / file.name
            made.touch()  # with the rights that the umask allows; SQLite would deny the group to write
            with closing(sqlite3.connect(made)) as db:
                db.execute("PRAGMA journal_mode = WAL")
                for name in ("schema.sql", "seed.sql"):
                    db.executescript(files(self._package).joinpath(name).read_text(encoding="utf-8"))
            with suppress(FileExistsError):  # another process was faster
                file.hardlink_to(made)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Make the block happen wholly or not at all."""
    db.execute("BEGIN IMMEDIATE")  # a read that becomes a write in it would be refused without waiting
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def once(db: sqlite3.Connection, key: str, tool: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do something unless it was done under this key; return the result, then or now.

    The effect and its record are one transaction: at no moment is only one of them true.
    """
    with transaction(db):
        found = done(db, key)
        if found is None:
            found = do()
            recorded = (key, tool, msgspec.json.encode(found).decode())
            db.execute("INSERT INTO effects VALUES (?, ?, ?)", recorded)
        return found


def done(db: sqlite3.Connection, key: str) -> dict[str, Any] | None:
    """Return the result of the effect with this key; None if it did not happen."""
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
