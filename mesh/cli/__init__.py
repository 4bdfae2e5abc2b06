"""The command line: noun, then verb; one file a noun.

Importing this must stay cheap, since every `--help` pays for it: the files that hold commands import
typer and each other, and whatever is heavy inside the command that needs it.
"""

import typer

from mesh.cli import agent, dead, guard, human, log, request, schema
from mesh.cli.bench import bench
from mesh.cli.demo import demo
from mesh.cli.dev import dev
from mesh.cli.doctor import doctor
from mesh.cli.exits import EPILOG, ReportingGroup
from mesh.cli.replay import replay
from mesh.cli.send import send
from mesh.cli.setup import setup
from mesh.cli.why import why

app = typer.Typer(
    name="mesh",
    cls=ReportingGroup,
    help="Event-sourced, guarded handoffs between LLM agents on NATS JetStream.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # they hold seeds, prompts and facts
    context_settings={"help_option_names": ["-h", "--help"]},
)

_FIRST, _DAILY, _RUNNING = "Begin", "Requests", "Running a mesh"

for name, command, panel in (
    ("demo", demo, _FIRST),
    ("dev", dev, _FIRST),
    ("send", send, _DAILY),
    ("why", why, _DAILY),
    ("replay", replay, _DAILY),
    ("setup", setup, _RUNNING),
    ("doctor", doctor, _RUNNING),
):
    app.command(name, rich_help_panel=panel)(command)
app.command(
    "bench",
    rich_help_panel=_RUNNING,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(bench)
for name, group, panel in (
    ("request", request.app, _DAILY),
    ("human", human.app, _DAILY),
    ("log", log.app, _DAILY),
    ("dead", dead.app, _DAILY),
    ("agent", agent.app, _RUNNING),
    ("guard", guard.app, _RUNNING),
    ("schema", schema.app, _RUNNING),
):
    app.add_typer(group, name=name, rich_help_panel=panel)


def main() -> None:
    """Run the command line; ends the process with one of the documented exit statuses."""
    app()
