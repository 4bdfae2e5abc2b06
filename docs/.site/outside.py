"""A hook of mkdocs: pages from outside `docs/`, links to files that are no pages, and words behind fences."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "agents/README.md": "fleets.md",
    "bench/README.md": "benchmarks.md",
    "deploy/README.md": "deploying.md",
}
"""By path in the repository: where the site has them."""
PICTURES = {"bench/growth.svg": "growth.svg"}
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")

_WORD = re.compile(r"^(```\w+) [\w-]+$", re.MULTILINE)
"""A fence whose second word is for the tests; mkdocs would not take it for a fence."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give the site the pages and pictures from outside."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    for source, name in PICTURES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to pages from outside to where the site has them; of other files leave the names."""
    written = next((path for path, name in PAGES.items() if name == page.file.src_uri), None)
    here = ROOT / (written or f"docs/{page.file.src_uri}")

    def led(found: re.Match[str]) -> str:
        text, link, anchor = found.groups()
        target = (here.parent / link).resolve()
        source = str(target.relative_to(ROOT)) if target.is_relative_to(ROOT) else ""
        up = "../" * page.file.src_uri.count("/")
        if source.startswith("docs/"):
            return f"[{text}]({up}{source.removeprefix('docs/')}{anchor or ''})"
        return f"[{text}]({up}{PAGES[source]}{anchor or ''})" if source in PAGES else text

    return _LINK.sub(led, _WORD.sub(r"\1", markdown))
