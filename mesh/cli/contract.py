"""`mesh schema`: the wire contract as schemas; `mesh bench`: measurements of a checkout."""

from pathlib import Path

import click

from mesh.cli.exits import Leave
from mesh.cli.options import A_PATH, framed
from mesh.cli.output import report
from mesh.errors import UsageWrong

schema = click.Group(help="The schemas of the wire contract.")


@schema.command("export")
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
    from protocol.wire.schema import documents

    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in sorted(documents().items()):
        (out / name).write_text(text)
        written.append(str(out / name))
    report({"written": written}, "\n".join(written), as_json=as_json, lines=True)


@click.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure this machine; `mesh bench --help` lists the measurements. Needs a checkout."""
    import importlib
    import sys

    root = Path(__file__).resolve().parents[2]
    if not (root / "bench" / "__init__.py").is_file():
        raise UsageWrong("the measurements are in a checkout (bench/), not in the installed package")
    sys.path.insert(0, str(root))
    raise Leave(importlib.import_module("bench").main(context.args))
