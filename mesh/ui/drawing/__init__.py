"""Pictures of requests and of a fleet: pure functions from what happened to SVG and to mermaid's text.

Everything here is drawn with classes and without colours: the page's style sheet gives them, light and dark.
All pictures are trees of SVG elements. Every text is foreign, and is escaped when it is written out.
`mermaid` writes texts as character codes.
"""

import unicodedata
from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, tostring

from mesh.service.printable import short

CHAR_PX = 6.3
"""Mean width of a character of the page's typeface at 12 px, measured over English prose."""
HUES = 8
"""Colours that the style sheet has for names: `hue-0` and so on."""


def hues(names: Iterable[str]) -> dict[str, str]:
    """Return the class of each name's colour, by the name's position."""
    return {name: f"hue-{place % HUES}" for place, name in enumerate(names)}


def picture(title: str, description: str, *, width: float, height: float, kind: str, key: str) -> Element:
    """Return an empty picture with its name and description for screen readers.

    Args:
        kind: its class.
        key: distinguishes its ids from those of other pictures on the page.
    """
    root = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "class": f"picture {kind}",
            "width": number(width),
            "height": number(height),
            "viewBox": f"0 0 {number(width)} {number(height)}",
            "role": "group",
            "aria-labelledby": f"{key}-title {key}-desc",
        },
    )
    add(root, "title", short(title, 200), id=f"{key}-title")
    add(root, "desc", short(description, 2000), id=f"{key}-desc")
    return root


def add(parent: Element, tag: str, text: str = "", /, **given: object) -> Element:
    """Append an element; `class_` sets `class`, and each other underscore becomes a hyphen."""
    attributes = {
        name.rstrip("_").replace("_", "-"): number(value) if isinstance(value, float) else str(value)
        for name, value in given.items()
        if value is not None
    }
    made = SubElement(parent, tag, attributes)
    if text:
        made.text = text
    return made


def box(parent: Element, kind: str, x: float, y: float, width: float, height: float, *, rx: int) -> None:
    """Append a rectangle of a class, with corners rounded by `rx` px."""
    add(parent, "rect", x=x, y=y, width=width, height=height, rx=rx, class_=kind)


def name_of(text: str) -> str:
    """Return a name, which its owner chose, shortened and on one line."""
    return short(text, 80)


def number(value: float) -> str:
    """Return a length without needless digits."""
    return f"{value:.1f}".removesuffix(".0")


def fitting(text: str, width: float) -> str:
    """Return as much of a foreign text as fits into `width` px, as one printable line."""
    most = max(1, int(width / CHAR_PX))
    line = short(text, most)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in line)
    return short(line, max(1, most - wide)) if wide else line


def written(root: Element) -> str:
    """Return a picture as markup."""
    return tostring(root, encoding="unicode")
