"""What the gateway keeps on its own disk: which key of a caller stands for which request, whose news is still
to be posted, and the contexts of A2A's tasks.

A row is on the disk before the request is on the bus. So after a crash in between, the repeated post finds
the row and submits the same request. What is to be posted is in the log: a row says only that it is.
"""

import hashlib
import sqlite3
import threading
from pathlib import Path
from typing import NamedTuple

from mesh.errors import UsageWrong
from protocol.wire.ids import RequestId, request_id, submitted_ms

KEY_LASTS_S = 24 * 3600
"""How long an `Idempotency-Key` stands for its request (s)."""
TASK_LASTS_S = 30 * 24 * 3600
"""How long the context of a task is known, and the task listed (s)."""
_WINDOW_MS = 300_000
_FORM = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS keys (
    client TEXT NOT NULL, key BLOB NOT NULL, request TEXT NOT NULL, digest TEXT NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (client, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keys_at ON keys (at);
CREATE TABLE IF NOT EXISTS hooked (request TEXT PRIMARY KEY, client TEXT NOT NULL, token TEXT NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS posted (request TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (request, n))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tasks (
    request TEXT PRIMARY KEY, client TEXT NOT NULL, context TEXT NOT NULL, at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tasks_at ON tasks (client, at, request);
CREATE TABLE IF NOT EXISTS replies (
    client TEXT NOT NULL, key BLOB NOT NULL, request TEXT NOT NULL, n INTEGER NOT NULL, digest TEXT NOT NULL,
    at INTEGER NOT NULL, PRIMARY KEY (client, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS replies_at ON replies (at);
"""


class KeyedRequest(NamedTuple):
    """The request that a caller's key stands for."""

    request: RequestId
    digest: str
    """SHA-256 (hex) of its submit."""
    is_new: bool = True
    """False if the key had one before."""


class HookedRequest(NamedTuple):
    """A request whose questions and end are posted to its token's URL."""

    request: RequestId
    client: str
    token: str
    """The token's id."""


class KeyedReply(NamedTuple):
    """The question that a caller's reply answers, under the reply's own key."""

    request: str
    n: int
    """The question's number."""
    digest: str
    """SHA-256 (hex) of what was said."""


class KeptTask(NamedTuple):
    """A request that came over A2A."""

    request: RequestId
    client: str
    context: str
    """What groups it with other tasks: the conversation."""
    at: int
    """Unix milliseconds at which it came."""


class TaskPage(NamedTuple):
    """Some of a client's tasks, the newest first."""

    tasks: tuple[KeptTask, ...]
    after: str
    """Where the next page begins; empty if there is none."""
    total: int


def request_of_key(client: str, key: str, now_s: float) -> RequestId:
    """Return the id that a key gets. Within the same five minutes, every gateway gives it the same one."""
    entropy = hashlib.sha256(f"{client}\x1f{key}".encode()).digest()[:10]
    return request_id(client, int(now_s * 1000) // _WINDOW_MS * _WINDOW_MS, entropy)


def _hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class GatewayStore:
    """A file in SQLite. Used from any thread.

    Args:
        folder: created if missing.

    Raises UsageWrong if the file cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "gateway.sqlite"
        self._lock = threading.Lock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = FULL")
            (form,) = self._file.execute("PRAGMA user_version").fetchone()
            if form not in (0, _FORM):
                raise UsageWrong(f"{path} is of form {form}, and this build knows form {_FORM}")
            self._file.executescript(_TABLES)
            self._file.execute(f"PRAGMA user_version = {_FORM}")
        except (OSError, sqlite3.Error) as wrong:
            raise UsageWrong(f"--store {path} cannot be used: {wrong}") from wrong

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def keep(self, client: str, key: str, digest: str, now_s: float, *, hook: str = "") -> KeyedRequest:
        """Return the request of a key, which is on the disk now: a new one, unless the key has one.

        Args:
            digest: SHA-256 (hex) of the submit, if the request is new.
            now_s: Unix time.
            hook: the id of the token to whose URL a new request's news is posted.
        """
        hashed = _hashed(key)
        fresh = KeyedRequest(request_of_key(client, key, now_s), digest)
        with self._lock, self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("DELETE FROM keys WHERE at < ?", (int(now_s) - KEY_LASTS_S,))
            made = self._file.execute(
                "INSERT OR IGNORE INTO keys VALUES (?, ?, ?, ?, ?)", (client, hashed, *fresh[:2], int(now_s))
            )
            if hook and made.rowcount:
                self._hook(HookedRequest(fresh.request, client, hook))
            request, kept = self._file.execute(
                "SELECT request, digest FROM keys WHERE client = ? AND key = ?", (client, hashed)
            ).fetchone()
        return KeyedRequest(RequestId(request), kept, made.rowcount == 1)

    def reply(self, client: str, key: str) -> KeyedReply | None:
        """Return what was kept of a reply; None if it is new."""
        with self._lock:
            row = self._file.execute(
                "SELECT request, n, digest FROM replies WHERE client = ? AND key = ?", (client, _hashed(key))
            ).fetchone()
        return None if row is None else KeyedReply(*row)

    def keep_reply(self, client: str, key: str, reply: KeyedReply, now_s: float) -> None:
        """Keep which question a reply answers, before it is sent; forget those that are too old."""
        with self._lock, self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("DELETE FROM replies WHERE at < ?", (int(now_s) - KEY_LASTS_S,))
            row = (client, _hashed(key), *reply, int(now_s))
            self._file.execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?, ?)", row)

    def is_keyed(self, request: str) -> bool:
        """Return True if a caller's key stands for a request."""
        from_s = submitted_ms(request) // 1000  # its key came within the window that begins here
        with self._lock:
            (found,) = self._file.execute(
                "SELECT count(*) FROM keys WHERE at BETWEEN ? AND ? AND request = ?",
                (from_s, from_s + _WINDOW_MS // 1000, request),
            ).fetchone()
        return bool(found)

    # --- what is to be posted ---------------------------------------------------------------------

    def hook(self, hooked: HookedRequest) -> None:
        """Keep that a request's news is to be posted."""
        with self._lock:
            self._hook(hooked)

    def _hook(self, hooked: HookedRequest) -> None:
        self._file.execute("INSERT OR IGNORE INTO hooked VALUES (?, ?, ?)", hooked)

    def hooked(self) -> list[HookedRequest]:
        """Return the requests whose end was not posted yet."""
        with self._lock:
            rows = self._file.execute("SELECT request, client, token FROM hooked").fetchall()
        return [HookedRequest(*row) for row in rows]

    def posted(self, request: str) -> frozenset[int]:
        """Return the numbers that `mark_posted` has kept."""
        with self._lock:
            rows = self._file.execute("SELECT n FROM posted WHERE request = ?", (request,)).fetchall()
        return frozenset(n for (n,) in rows)

    def mark_posted(self, request: str, n: int) -> None:
        """Keep that a question was taken by its receiver, or what else a number stands for."""
        with self._lock:
            self._file.execute("INSERT OR IGNORE INTO posted VALUES (?, ?)", (request, n))

    def unhook(self, request: str) -> None:
        """Forget a request: its end was taken, or its token was revoked."""
        with self._lock, self._file:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("DELETE FROM hooked WHERE request = ?", (request,))
            self._file.execute("DELETE FROM posted WHERE request = ?", (request,))

    # --- tasks ------------------------------------------------------------------------------------

    def keep_task(self, task: KeptTask) -> None:
        """Keep a task, unless it is kept already; forget those that are too old."""
        with self._lock, self._file:
            self._file.execute("BEGIN IMMEDIATE")
            old = (task.client, task.at - TASK_LASTS_S * 1000)
            self._file.execute("DELETE FROM tasks WHERE client = ? AND at < ?", old)
            self._file.execute("INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?)", task)

    def drop_task(self, request: str) -> None:
        """Forget a task that the guard did not take."""
        with self._lock:
            self._file.execute("DELETE FROM tasks WHERE request = ?", (request,))

    def task_context(self, request: str) -> str | None:
        """Return the context of a task; None if it did not come here, or long ago."""
        with self._lock:
            row = self._file.execute("SELECT context FROM tasks WHERE request = ?", (request,)).fetchone()
        return None if row is None else str(row[0])

    def tasks(self, client: str, context: str, after: str, size: int) -> TaskPage:
        """Return a page of a client's tasks.

        Args:
            context: only of this context; empty for all.
            after: what the page before says; empty for the first.
        """
        at, _, request = after.partition(".")
        where, values = "client = ?", list[object]([client])
        if context:
            where, values = f"{where} AND context = ?", [*values, context]
        paged = f"{where} AND (at, request) < (?, ?)" if after else where
        begin = [int(at) if at.isascii() and at.isdecimal() and len(at) < 17 else 0, request] if after else []
        with self._lock:
            (total,) = self._file.execute(f"SELECT count(*) FROM tasks WHERE {where}", values).fetchone()
            rows = self._file.execute(
                f"SELECT request, client, context, at FROM tasks WHERE {paged}"
                " ORDER BY at DESC, request DESC LIMIT ?",
                [*values, *begin, size + 1],
            ).fetchall()
        found = tuple(KeptTask(RequestId(name), *rest) for name, *rest in rows[:size])
        return TaskPage(found, f"{found[-1].at}.{found[-1].request}" if len(rows) > size else "", total)
