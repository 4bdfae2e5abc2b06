"""The command line: noun, then verb; one file a noun.

Importing this must stay cheap, since every `--help` pays for it: the files that hold commands import
typer and each other, and whatever is heavy inside the command that needs it.
"""

import typer

from mesh.cli import agent, dead, doubt, guard, human, log, request, schema
from mesh.cli.bench import bench
from mesh.cli.check_agent import check_agent
from mesh.cli.cost import cost
from mesh.cli.demo import demo
from mesh.cli.dev import dev
from mesh.cli.doctor import doctor
from mesh.cli.exits import EPILOG, ReportingGroup
from mesh.cli.freeze import freeze, thaw
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
    rich_markup_mode=None,  # drawing the help with rich takes longer than everything else in it
    pretty_exceptions_enable=False,  # a bug's traceback is a log line like any other, and shows no values
    context_settings={"help_option_names": ["-h", "--help"]},
)

for name, command in (("demo", demo), ("dev", dev), ("send", send)):
    app.command(name)(command)
app.add_typer(request.app, name="request")
for name, command in (("why", why), ("replay", replay)):
    app.command(name)(command)
for name, group in (
    ("human", human.app),
    ("doubt", doubt.app),
    ("dead", dead.app),
    ("log", log.app),
    ("agent", agent.app),
    ("guard", guard.app),
):
    app.add_typer(group, name=name)
for name, command in (("freeze", freeze), ("thaw", thaw), ("setup", setup), ("doctor", doctor)):
    app.command(name)(command)
app.command("cost")(cost)
app.command("check-agent")(check_agent)
app.add_typer(schema.app, name="schema")
app.command(
    "bench",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(bench)


def main() -> None:
    """Run the command line; ends the process with one of the documented exit statuses."""
    app()
