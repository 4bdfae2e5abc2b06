"""`mesh schema export`: the wire contract for programs in other languages."""

from pathlib import Path
from typing import Annotated

import typer

from mesh.cli.options import AsJson
from mesh.cli.output import report

app = typer.Typer(help="The schemas of the wire contract.", no_args_is_help=True)


@app.callback()
def schema() -> None:
    """The schemas of the wire contract."""


@app.command("export")
def export(
    out: Annotated[Path, typer.Option("--out", help="The directory to write them to.")] = Path("schema"),
    as_json: AsJson = False,
) -> None:
    """Write the JSON Schema and the AsyncAPI document, generated from the types that the code uses."""
    from protocol.wire import schema as contract

    out.mkdir(parents=True, exist_ok=True)
    documents = contract.documents()
    for name, text in documents.items():
        (out / name).write_text(text)
    written = [str(out / name) for name in sorted(documents)]
    report({"written": written}, "\n".join(written), as_json=as_json, lines=True)
