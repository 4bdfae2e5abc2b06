"""A fixture that judges again whatever a test played."""

from collections.abc import Iterator
from typing import Any

import pytest

from mesh.replay.rejudge import rejudge
from tests.unit.protocol.worlds import Play


@pytest.fixture
def judged_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test played: the same verdicts come of the log alone."""
    plays: list[Play] = []
    begin = Play.__init__

    def noted(self: Play, *args: Any, **said: Any) -> None:
        begin(self, *args, **said)
        plays.append(self)

    monkeypatch.setattr(Play, "__init__", noted)
    yield
    for play in plays:
        assert rejudge(play.bodies).same, rejudge(play.bodies).differences
