"""docs/fleet-file.md: its example is a fleet file, and it has every section that there is."""

import tomllib

from mesh.fleet.file import FleetFile, parse_fleet
from tests.docs.pages import DOCS, blocks


def test_the_example_is_a_fleet_file_and_shows_every_section() -> None:
    (example,) = blocks((DOCS / "fleet-file.md").read_text())
    parse_fleet(example.text)
    assert set(tomllib.loads(example.text)) == set(FleetFile.model_fields)
