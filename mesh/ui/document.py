"""A request as one file: HTML that opens without a server, a network or a script.

It says so itself: its policy allows its own style sheet, by that one's digest, and nothing else.
"""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files

from markupsafe import Markup

from mesh.ui.drawing.scene import scene
from mesh.ui.drawing.sequence import parts, sequence
from mesh.ui.drawing.strip import course, strip
from mesh.ui.story import standing
from mesh.ui.templating import environment
from protocol.views.timeline import Timeline
from protocol.wire.events import AnyEvent


def html(told: Timeline, happened: Sequence[AnyEvent], bodies: Sequence[bytes]) -> str:
    """Return a request as a self-contained page.

    Args:
        bodies: the events as stored; each is in the page whole.

    Raises BrokenLog.
    """
    style = files("mesh.ui").joinpath("static", "page.css").read_text()
    drawn = scene(told)
    return (
        environment()
        .get_template("download.html")
        .render(
            told=told,
            stands=standing(happened),
            began=happened[0].at,
            bodies=bodies,
            style=Markup(style),
            style_digest=b64encode(sha256(style.encode()).digest()).decode(),
            sequences=[Markup(sequence(drawn, part=part, key=f"seq{part}")) for part in range(parts(drawn))],
            strip=Markup(strip(course(happened))),
        )
    )
