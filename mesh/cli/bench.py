"""`mesh bench`: the measurements of the checkout; what follows is theirs to read."""

import typer


def bench(context: typer.Context) -> None:
    """Measure this machine; `mesh bench --help` says what and how. Needs a checkout."""
    from mesh.cli.checkout import measurements

    raise typer.Exit(measurements().main(context.args))
