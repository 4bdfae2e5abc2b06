"""The starter project: a small fleet of one's own, which runs and passes its tests as it is written.

`template/` is that project, under the names that are replaced here.
"""

import keyword
import re
import sys
from pathlib import Path

from mesh.errors import UsageWrong
from protocol.wire.ids import is_name

TEMPLATE = Path(__file__).with_name("template")
_PACKAGE, _FLEET = "yours", "your-fleet"
_TAKEN = {"agents", "mesh", "protocol", "tests"}
"""Import names that a starter's package must not hide."""
_PLAIN = {"gitignore": ".gitignore"}
"""Files that bear another name here, where they would act on this project."""


def write_starter(directory: Path) -> list[Path]:
    """Write a starter project, named after its directory; return its files.

    Raises UsageWrong if that name is no fleet's, if a file is there already, or if none can be written.
    """
    fleet = re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-")
    package = fleet.replace("-", "_")
    is_module = package.isidentifier() and not keyword.iskeyword(package)
    if not is_name(fleet) or not is_module or package in _TAKEN | sys.stdlib_module_names:
        raise UsageWrong(
            f"{directory.resolve().name!r} is the folder's name and would name its Python package; "
            "take another: up to 24 letters and digits, a letter first, and no module's name"
        )
    files = {}
    for source in sorted(each for each in TEMPLATE.rglob("*") if each.is_file()):
        if "__pycache__" not in source.parts:
            parts = source.relative_to(TEMPLATE).parts
            named = (package if part == _PACKAGE else _PLAIN.get(part, part) for part in parts)
            text = source.read_text().replace(_FLEET, fleet)
            files[directory.joinpath(*named)] = re.sub(rf"\b{_PACKAGE}\b", package, text)
    if there := [path for path in files if path.exists()]:
        raise UsageWrong(f"{there[0]} is there already; mesh init overwrites nothing")
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as wrong:
        raise UsageWrong(f"{directory} cannot be written: {wrong.strerror}") from wrong
    return list(files)
