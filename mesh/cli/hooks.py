"""Telling somebody: a command of the user's own is run for each alarm.

What an alarm says was written by strangers. It reaches the command in its environment and on its standard
input, and never as a part of the command line, where a shell would read it.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping

import msgspec

from mesh.cli.output import remark, short
from mesh.ops.watch import Alarm, Alarms

_VALUE_CHARS = 1_000
_STDERR = 2


def environment(alarm: Alarm) -> dict[str, str]:
    """Return what a command finds in its environment beside our own."""
    facts: Mapping[str, object] = {
        "MESH_WHAT": alarm.what,
        "MESH_AT": alarm.at,
        "MESH_REQUEST": alarm.request,
        "MESH_AGENT": alarm.agent,
        "MESH_SUMMARY": alarm.summary,
        "MESH_REASON": alarm.reason,
        "MESH_URL": alarm.url,
        "MESH_SEQ": "" if alarm.seq is None else alarm.seq,
        "MESH_TIER": "" if alarm.waiting is None else alarm.waiting.tier or "",
        "MESH_TIER_NAME": alarm.tier_name,
    }
    return {name: short(str(value), _VALUE_CHARS) for name, value in facts.items()}


async def tell(command: str, alarm: Alarm, *, within_s: float) -> bool:
    """Run a command through the shell; say whether it succeeded. What went wrong is remarked on.

    It has the alarm as JSON on its standard input. What it prints goes to our standard error.
    """
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=_STDERR,
        stderr=_STDERR,
        env={**os.environ, **environment(alarm)},
        start_new_session=True,
    )
    told = f"{alarm.what} {alarm.request}".strip()
    try:
        async with asyncio.timeout(within_s):
            await process.communicate(msgspec.json.encode(alarm) + b"\n")
    except TimeoutError:
        remark(f"mesh: the command for {told} had not ended after {within_s:g} s, and was killed")
        return False
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started
            await process.wait()
    if process.returncode:
        remark(f"mesh: the command for {told} ended with {process.returncode}")
    return not process.returncode


class Hooks:
    """Runs a command for each alarm, one after the other, beside whatever else goes on."""

    def __init__(self, command: str | None, *, within_s: float) -> None:
        self._command = command
        self._within_s = within_s
        self._alarms = Alarms()
        self._running: asyncio.Task[None] | None = None

    def add(self, alarm: Alarm) -> None:
        """Have the command run for an alarm; returns at once."""
        if self._command is None:
            return
        self._alarms.put(alarm)
        if self._running is None:
            self._running = asyncio.create_task(self._run(self._command))

    async def _run(self, command: str) -> None:
        while True:
            alarm = await self._alarms.get()
            try:
                await tell(command, alarm, within_s=self._within_s)
            except OSError as error:
                remark(f"mesh: the command for {alarm.what} {alarm.request} could not be started: {error}")
            finally:
                self._alarms.told()

    async def finish(self) -> None:
        """Wait until the command has run for every alarm."""
        await self._alarms.all_told()

    async def close(self) -> None:
        """Kill what runs, and run nothing more."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
