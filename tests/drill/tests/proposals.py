"""Evidence that says what was asked for: by the client, and by agents in their own words."""

from dataclasses import replace

import msgspec
import pytest

from protocol.domain import rules
from protocol.wire.commands import Submit, Transfer
from protocol.wire.grounds import Rule
from tests.drill.evidence import Asked, Evidence, Submitted
from tests.drill.tests.scene import REQUEST, Scene, changed, clean, opened, whole
from tests.unit.protocol import worlds


def admitted_in_a_circle() -> Evidence:
    """A transfer to somebody on the path, by a guard that lets it pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(rules.RULES, Rule.CYCLE, lambda case: None)
        scene = opened()
        scene.court.move(worlds.transfer("a"))
        scene.court.move(worlds.complete())
    return scene.evidence()


def sent(submit: Submit) -> Submitted:
    return Submitted(REQUEST, 1, True, "", ("completed",), submit)


def asked_in(scene: Scene) -> list[Asked]:
    """Return every move that was asked for in a scene, as agents write them down."""
    return [Asked(REQUEST, each.turn, each.round, each.move) for each in scene.court.heard.values()]


def asked_for_something_else() -> Evidence:
    asked = asked_in(whole())
    transfers = [n for n, each in enumerate(asked) if isinstance(each.move, Transfer)]
    last = asked[transfers[-1]]
    asked[transfers[-1]] = replace(last, move=msgspec.structs.replace(last.move, no_return=True))
    return changed(clean(), asked=asked)
