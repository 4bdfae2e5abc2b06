"""The command line: noun, then verb; one file per noun.

A command's file is imported when the command is called, so no noun pays for another.
"""

import importlib
import os
from typing import NamedTuple

import click

from mesh.cli.exits import EPILOG, ReportingGroup
from mesh.cli.output import say


class CommandPlace(NamedTuple):
    """Where a command is, and its line in the list of all commands, so that listing them imports none."""

    module: str
    name: str
    help: str


COMMANDS = {
    "init": CommandPlace(
        "files", "init", "Write a starter project: two agents that hand work to each other."
    ),
    "demo": CommandPlace(
        "demo",
        "demo",
        "Run a fleet on sample requests, with a server and a guard; show what happens, and sum up.",
    ),
    "run": CommandPlace(
        "run", "run", "Run one request through the agents of a file, with the guard's rules and no server."
    ),
    "dev": CommandPlace("dev", "dev", "Run a server, a guard and the agents on this machine until Ctrl-C."),
    "send": CommandPlace("send", "send", "Submit a request, wait for its end, print the answer."),
    "eval": CommandPlace(
        "eval", "evaluate", "Send the requests in FILE, and compare what comes of them with what should."
    ),
    "chat": CommandPlace("chat", "chat", "Talk to the fleet, a line a message."),
    "request": CommandPlace(
        "request", "app", "Requests: submit, list, show, calls, watch, cancel, freeze, thaw, rerun."
    ),
    "artifact": CommandPlace("artifact", "app", "Artifacts, data too large for a handoff: save, get."),
    "why": CommandPlace("audit", "why", "Explain a verdict, and name what would be allowed."),
    "diff": CommandPlace(
        "diff", "diff", "Compare two requests: the first divergence, then both side by side."
    ),
    "replay": CommandPlace("replay", "replay", "Judge a log again and compare the verdicts."),
    "attach": CommandPlace(
        "attach", "attach", "Run one turn's code again in this process, where a debugger stops."
    ),
    "fork": CommandPlace(
        "fork", "fork", "Submit a request that goes on from an old one after event N; print its id."
    ),
    "export-test": CommandPlace(
        "export_test", "export_test", "Write a recorded request as a file for pytest."
    ),
    "human": CommandPlace(
        "human",
        "app",
        "Work that waits for people: list, show, resolve, reply, approve, deny, assign, watch.",
    ),
    "doubt": CommandPlace("doubt", "app", "Effects in doubt: list, show, settle."),
    "dead": CommandPlace("dead", "app", "Dead letters: list, show, resend."),
    "log": CommandPlace("log", "app", "The log: tail, export, archive, verify, anchors, trim-steps."),
    "memory": CommandPlace("memory", "app", "What conversations remember: list, show, forget."),
    "agent": CommandPlace("agent", "app", "Agents: run one, add one, see who is there, show a prompt."),
    "guard": CommandPlace("guard", "app", "The guard, which decides every proposal."),
    "freeze": CommandPlace("fleet", "freeze", "Freeze the whole mesh: guards decide nothing until the thaw."),
    "thaw": CommandPlace(
        "fleet",
        "thaw",
        "Thaw the whole mesh: guards decide the messages that waited, in order.",
    ),
    "setup": CommandPlace(
        "fleet", "setup", "Create or update keys, accounts and the bus from the fleet file."
    ),
    "key": CommandPlace("key", "app", "The members' keys: list, rotate, retire."),
    "conf": CommandPlace("conf", "app", "The fleet and its policies over time: log, show, diff, rollback."),
    "policy": CommandPlace(
        "policy",
        "app",
        "Policies and their shadows: list, show, shadow, report, promote.",
    ),
    "schedule": CommandPlace(
        "schedule",
        "app",
        "Requests that begin by the calendar or at a time: list, pause, resume, run now, cancel.",
    ),
    "doctor": CommandPlace(
        "fleet", "doctor", "Check a mesh and report what is wrong with it; exit status 1 if anything is."
    ),
    "backup": CommandPlace(
        "backup", "backup", "Copy the mesh into a folder; into the same folder again, only what is new."
    ),
    "restore": CommandPlace(
        "backup", "restore", "Make the mesh of a backup on a server with an empty store."
    ),
    "requeue": CommandPlace(
        "backup", "requeue", "Deliver open turns again that are in no queue, and arm missing timers."
    ),
    "cost": CommandPlace(
        "audit",
        "cost",
        "Sum up the cost of models: dollars, tokens, and the share of prompts that the vendor had cached.",
    ),
    "stats": CommandPlace(
        "stats",
        "stats",
        "Count requests: edges, depths, refusals, ping-pong, times, costs, days, and who has what is open.",
    ),
    "check-agent": CommandPlace(
        "check_agent", "check_agent", "Check that an agent, in any language, keeps to the protocol."
    ),
    "ui": CommandPlace("ui", "ui", "Serve the web UI: requests, people, agents and the mesh, until Ctrl-C."),
    "gateway": CommandPlace(
        "gateway", "app", "Requests over HTTP, and the tokens of those who may send them."
    ),
    "schema": CommandPlace("schema", "app", "The schemas of the wire contract."),
    "completion": CommandPlace("files", "completion", "Print the script that completes `mesh` in a shell."),
}
"""By name, in the order of the list."""


class Commands(ReportingGroup):
    """The root. It imports a command when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        place = COMMANDS[cmd_name]
        found = getattr(importlib.import_module(f"mesh.cli.{place.module}"), place.name)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands as click does, without importing them."""
        width = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            shown = [click.Command(name, help=place.help) for name, place in COMMANDS.items()]
            formatter.write_dl([(str(each.name), each.get_short_help_str(width)) for each in shown])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as wrong:  # click knows only imported commands
            raise click.NoSuchCommand(wrong.command_name, possibilities=COMMANDS, ctx=ctx) from None


def _print_version(ctx: click.Context, option: click.Parameter, is_wanted: bool) -> None:
    """Print the version, and what it was built from (`mesh.settings` is too much to load for that)."""
    if is_wanted:
        version = importlib.import_module("importlib.metadata").version  # slow to import
        build = " ".join(os.environ.get("MESH_BUILD", "").split())
        say(f"mesh {version('handoff-mesh')}{f' (build {build})' if build else ''}")
        ctx.exit()


app = Commands(
    name="mesh",
    help="Event-sourced, guarded handoffs between LLM agents on NATS JetStream.",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.params.append(
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Show the version and exit.",
    )
)


def main() -> None:
    """Run the command line; ends the process with one of the documented exit statuses."""
    app(prog_name="mesh")
