"""The picture at the top of the README: its story is played, and the picture shows that story."""

import re
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from docs.recording import killed
from docs.recording.picture import Chunk, drawn, lines_of

PNG = b"\x89PNG"
PICTURE = Path(killed.__file__).with_name("killed.svg")
STORY = (
    "mesh dev &",
    'mesh send "Charge order 1042" &',
    "was killed by SIGKILL",
    "nobody knows if charge_card happened: mesh doubt ls",
    "cat bank.log     # a person asks the bank",
    "mesh doubt settle app_",
    "is settled as done",
    "; till goes on",
    "Order 1042 is paid: 49 EUR charged.",
)


def test_the_story_happens_as_the_picture_shows_it(tmp_path: Path) -> None:
    page = tmp_path / "page.png"
    terminal = killed.play(tmp_path, partial(killed.photograph, page), reading_s=0.01)
    assert page.read_bytes().startswith(PNG)
    for said in STORY:
        assert said in terminal.text
    assert (tmp_path / "bank.log").read_text() == "order 1042: 49 EUR charged\n"
    ElementTree.fromstring(drawn(terminal.chunks, "a title"))


def test_the_picture_that_is_kept_is_of_that_story_and_names_no_place_of_a_machine() -> None:
    shown = "".join(ElementTree.fromstring(PICTURE.read_text()).itertext())
    for said in STORY:
        assert said in shown
    assert not re.search("/tmp|/home|/root|/work", shown)
    assert PICTURE.with_name("killed-page.png").read_bytes().startswith(PNG)
    assert shown.count("order 1042: 49 EUR charged") == 2  # the person looks at the bank's book twice


def test_lines_come_when_they_are_whole_and_pauses_are_cut() -> None:
    chunks = [Chunk(10.0, b"a\r\nb"), Chunk(10.5, b"c\n"), Chunk(99.0, b"\x1b[31md\x1b[0m\n")]
    assert [(line.at_s, line.text) for line in lines_of(chunks)][:2] == [(0.0, "a"), (0.5, "bc")]
    assert lines_of(chunks)[2].at_s == 2.0
    assert 'fill="#' in drawn(chunks, "t")
