"""The command line: noun, then verb; one file a noun.

A command's file is imported when the command is asked for. A command imports heavy modules inside its own
body, so that no command pays for another.
"""

import importlib

import click

from mesh.cli.exits import EPILOG, ReportingGroup

COMMANDS = {
    "init": "mesh.cli.files:init",
    "demo": "mesh.cli.demo:demo",
    "dev": "mesh.cli.dev:dev",
    "send": "mesh.cli.send:send",
    "request": "mesh.cli.request:app",
    "artifact": "mesh.cli.files:artifact",
    "why": "mesh.cli.audit:why",
    "replay": "mesh.cli.audit:replay",
    "human": "mesh.cli.human:app",
    "doubt": "mesh.cli.human:doubt",
    "dead": "mesh.cli.log:dead",
    "log": "mesh.cli.log:app",
    "memory": "mesh.cli.log:memory",
    "agent": "mesh.cli.agent:app",
    "guard": "mesh.cli.fleet:guard",
    "freeze": "mesh.cli.fleet:freeze",
    "thaw": "mesh.cli.fleet:thaw",
    "setup": "mesh.cli.fleet:setup",
    "doctor": "mesh.cli.fleet:doctor",
    "cost": "mesh.cli.audit:cost",
    "check-agent": "mesh.cli.agent:check_agent",
    "ui": "mesh.cli.dev:ui",
    "schema": "mesh.cli.files:schema",
    "completion": "mesh.cli.files:completion",
}
"""Where each command is."""


class Commands(ReportingGroup):
    """The root: it imports a command when somebody asks for it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found = getattr(importlib.import_module(module), name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as wrong:  # click knows only of commands that are imported
            raise click.NoSuchCommand(wrong.command_name, possibilities=COMMANDS, ctx=ctx) from None


app = Commands(
    name="mesh",
    help="Event-sourced, guarded handoffs between LLM agents on NATS JetStream.",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(package_name="handoff-mesh", message="mesh %(version)s")(app)


def main() -> None:
    """Run the command line; ends the process with one of the documented exit statuses."""
    app(prog_name="mesh")
