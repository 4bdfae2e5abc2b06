"""`mesh schema export`, the wire contract for programs in other languages; and `mesh bench`, measurements."""

from pathlib import Path

import click

from mesh.cli.exits import Leave
from mesh.cli.options import A_PATH, json_option
from mesh.cli.output import report

app = click.Group(help="The schemas of the wire contract.")


@app.command("export")
@click.option(
    "--out",
    type=A_PATH,
    default=Path("schema"),
    show_default=True,
    help="The directory to write them to.",
)
@json_option
def export(*, out: Path, as_json: bool) -> None:
    """Write the JSON Schema and the AsyncAPI document, generated from the types that the code uses."""
    from protocol.wire import schema as contract

    out.mkdir(parents=True, exist_ok=True)
    documents = contract.documents()
    for name, text in documents.items():
        (out / name).write_text(text)
    written = [str(out / name) for name in sorted(documents)]
    report({"written": written}, "\n".join(written), as_json=as_json, lines=True)


@click.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure this machine; `mesh bench --help` says what and how. Needs a checkout."""
    from mesh.cli.checkout import measurements

    raise Leave(measurements().main(context.args))
