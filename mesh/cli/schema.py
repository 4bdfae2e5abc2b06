"""`mesh schema …`: the schemas of the wire contract."""

from pathlib import Path

import click

from mesh.cli.options import A_PATH, framed
from mesh.cli.output import report
from protocol.wire.schema import documents

app = click.Group(help="The schemas of the wire contract.")


@app.command("export")
@click.option(
    "--out",
    type=A_PATH,
    default=Path("schema"),
    show_default=True,
    help="The directory to write them to.",
)
@framed
def export(*, out: Path, as_json: bool) -> None:
    """Write the JSON Schema and the AsyncAPI document, generated from the types that the code uses."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in sorted(documents().items()):
        (out / name).write_text(text)
        written.append(str(out / name))
    report({"written": written}, "\n".join(written), as_json=as_json, lines=True)
