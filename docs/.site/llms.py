"""A hook of mkdocs: `llms.txt`, which lists the pages for a model that reads the site, each as Markdown."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_DIRECTIVE = re.compile(r"^::: ", re.MULTILINE)
"""On a page that is made of docstrings, which its Markdown does not hold."""
_PAGES: dict[str, str] = {}


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Keep a page's Markdown, with its links led to where the site has them."""
    _PAGES[page.file.src_uri] = page.markdown or ""


def on_post_build(config: MkDocsConfig) -> None:
    """Write the list, and beside the pages what they were made of."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}\n\n> {config.site_description}\n"]
    for section, title, source in _pages(config.nav or []):
        if section:
            lines.append(f"\n## {section}\n\n")
        text = _PAGES[source]
        if _DIRECTIVE.search(text):
            target = f"{source.removesuffix('.md')}/"
        else:
            target = source
            (site / source).parent.mkdir(parents=True, exist_ok=True)
            (site / source).write_text(text)
        lines.append(f"- [{title}]({target}): {_about(text)}\n")
    (site / "llms.txt").write_text("".join(lines))


def _pages(nav: list[Any], under: str = "Start") -> Iterator[tuple[str, str, str]]:
    """Yield each page of the navigation: its section if it is the section's first, its title, its source."""
    section = under
    for entry in nav:
        ((title, target),) = entry.items()
        if isinstance(target, str):
            yield section, title, target
            section = ""
        else:
            yield from _pages(target, title if under == "Start" else f"{under}: {title}")


def _about(text: str) -> str:
    """Return the first sentence of a page."""
    prose = next(part for part in text.split("\n\n") if re.match(r"[A-Z`*\[]", part))
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(prose.split())).replace("**", "")
    return re.split(r"(?<=[.:]) (?=[A-Z`])", plain)[0].rstrip(":")
