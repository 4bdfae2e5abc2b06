"""Render `docs/pictures/*.mmd` to SVG, in Debian's chromium, with mermaid's own script from this machine.

`npm pack mermaid@11`, unpack it, then: python docs/.site/pictures.py package/dist/mermaid.min.js
The site loads nothing from elsewhere, so the pictures are kept as SVG beside their texts. Each names the
digest of its text, by which a test finds one that was not rendered again.
"""

import hashlib
import os
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
_SETTINGS = {
    "startOnLoad": False,
    "theme": "neutral",
    "htmlLabels": False,
    "flowchart": {"htmlLabels": False},
}
_DRAW = "async ([name, text]) => (await mermaid.render(name, text)).svg"


def mark(text: str) -> str:
    """Return the comment that ties an SVG to its text."""
    return f"<!-- SHA-256 of its text: {hashlib.sha256(text.encode()).hexdigest()} -->\n"


def render(script: Path) -> None:
    """Write the SVG of every picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.set_content('<body style="background: white"></body>')
        page.add_script_tag(path=script)
        page.evaluate("settings => mermaid.initialize(settings)", _SETTINGS)
        for source in sorted(PICTURES.glob("*.mmd")):
            text = source.read_text()
            svg = page.evaluate(_DRAW, [source.stem, text]).replace("<br>", "<br/>")
            drawn = svg.replace('style="', 'style="background-color: white; ', 1)
            source.with_suffix(".svg").write_text(mark(text) + drawn + "\n")
        browser.close()


if __name__ == "__main__":
    render(Path(sys.argv[1]))
