"""Sessions that their visitors have ended: a copy of such a cookie opens nothing any more."""

import time
from pathlib import Path

import msgspec

from mesh.bus.credentials import replace_private
from mesh.service.logs import get_logger

_log = get_logger(__name__)


class EndedSessions:
    """The ids of ended sessions, each kept as long as its cookie could be valid.

    Args:
        path: a file that outlives the process; None if sessions end with it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._until = {} if path is None else _read(path)

    def __contains__(self, session: str) -> bool:
        return session in self._until

    def add(self, session: str, until: int) -> None:
        """End a session whose cookie could be valid `until` (UTC s)."""
        now = time.time()
        self._until = {old: end for old, end in self._until.items() if end > now} | {session: until}
        if self._path is not None:
            replace_private(self._path, msgspec.json.encode(self._until))


def _read(path: Path) -> dict[str, int]:
    """Return the content of a file; empty if there is none, or if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as wrong:
        _log.error("ended_sessions_unreadable", path=str(path), error=type(wrong).__name__)
        return {}
