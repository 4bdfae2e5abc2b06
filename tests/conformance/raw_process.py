"""An agent without our runtime, by docs/wire/agent.md alone; its arguments, if any, name a mistake in it."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import read_key
from mesh.bus.nats_protocol import Incoming
from mesh.errors import MeshError

NAME = os.environ["MESH_NAME"]
FAULT = " ".join(sys.argv[1:])
KNOWN = {
    "request.opened",
    "handoff.admitted",
    "move.refused",
    "turn.retried",
    "turn.resumed",
    "escalation.resolved",
    "effect.settled",
}


class Broken(Exception):
    pass


async def decide(work: dict[str, Any]) -> dict[str, Any]:
    """Return the move that the fact `do` asks for."""
    facts = {fact["key"]: fact["value"] for fact in work["handoff"]["facts"]}
    past = work.get("past", [])
    if FAULT == "dies of what is withheld" and "withheld" in work:
        raise Broken
    match facts["do"]:
        case "refused" if past and FAULT != "hears no refusal":
            return {"move": "complete", "answer": past[-1]["refusal"]["rule"]}
        case "refused":
            return {"move": "transfer", "to_agent": "nobody", "summary": "to nobody"}
        case "transfer" if work["handoff"]["move"] == "hand_back":
            return {"move": "complete", "answer": facts["found"]}
        case "transfer":
            return {"move": "transfer", "to_agent": "counterpart", "summary": "look"}
        case "ask" if past and FAULT != "hears no reply":
            return {"move": "complete", "answer": past[-1]["reply"]}
        case "ask":
            return {"move": "ask", "to_agent": "app", "question": "What?"}
        case "large":
            return {"move": "complete", "answer": "x" * 300_000}
        case "wait":
            await asyncio.sleep(facts["for_s"])
            return {"move": "complete", "answer": "waited"}
        case "complete":
            return {"move": "complete", "answer": facts["text"]}
    raise Broken


class Raw:
    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.inbox = bus.new_inbox()
        self.heard: asyncio.Queue[Incoming] = asyncio.Queue()
        self.done: set[tuple[str, int]] = set()
        self.told = False
        """True once any notice came."""

    async def run(self) -> None:
        await self.bus.subscribe(self.inbox, self.heard.put_nowait)
        await self.bus.subscribe(f"mesh.note.{NAME}.*", self.note)
        if FAULT != "answers no ping":
            ping = {"type": "io.nats.micro.v1.ping_response", "name": NAME, "id": "1", "version": "1.0.0"}
            answer = json.dumps(ping).encode()
            await self.bus.subscribe(f"$SRV.PING.{NAME}", lambda asked: self.say(asked.reply, answer))
        while True:
            lasts_s = 30 if FAULT == "pulls for thirty seconds" else 4
            batch = 5 if FAULT == "takes five at once" else 1
            pull = json.dumps({"batch": batch, "expires": lasts_s * 1_000_000_000}).encode()
            self.bus.send(f"$JS.API.CONSUMER.MSG.NEXT.LOG.in-{NAME}", pull, reply=self.inbox)
            try:
                async with asyncio.timeout(None if FAULT == "waits for a lost pull" else 5.5):
                    message = await self.heard.get()
            except TimeoutError:
                continue
            from_ours = message.reply.startswith(f"$JS.ACK.LOG.in-{NAME}.")
            is_ours = from_ours and message.subject.startswith(f"mesh.evt.{NAME}.")
            if is_ours or (message.reply and FAULT == "believes a smuggled delivery"):
                await self.take(message)

    def note(self, message: Incoming) -> None:
        self.told = self.told or bool(message.data)

    def say(self, subject: str, data: bytes) -> None:
        self.bus.send(subject, data)

    async def take(self, message: Incoming) -> None:
        try:
            event = json.loads(bytes(message.data))
        except ValueError:
            return await self.bury(message)
        if event["type"] not in KNOWN or (event["v"] != 2 and FAULT != "reads every form"):
            answers = {"knows everything": b"+ACK", "gives back at once": b"-NAK"}
            return self.say(message.reply, answers.get(FAULT, b'-NAK {"delay": 5000000000}'))
        beat = asyncio.create_task(self.beat(message.reply))
        try:
            await self.work(message, event)
        finally:
            beat.cancel()

    async def beat(self, reply: str) -> None:
        while FAULT != "sends no heartbeat":
            await asyncio.sleep(2)
            self.say(reply, b"+WPI")

    async def bury(self, message: Incoming) -> None:
        letter = {
            "at": 1,
            "by": NAME,
            "code": "unreadable",
            "detail": "no JSON",
            "subject": message.subject,
            "data": base64.b64encode(bytes(message.data)).decode(),
        }
        if FAULT != "keeps no dead letter":
            await self.bus.request(f"mesh.dead.{NAME}", json.dumps(letter).encode())
        self.say(message.reply, b"+TERM unreadable")

    async def work(self, message: Incoming, event: dict[str, Any]) -> None:
        request, work = event["request"], event["work"]
        place = {"turn": work["turn"], "round": work["round"], "report": work.get("reported", {})}
        if FAULT == "drops its report":
            del place["report"]
        if FAULT == "takes the turn that ended" and "turn" in event:
            place["turn"] = event["turn"]
        if FAULT == "leaves out the round":
            del place["round"]
        if FAULT == "ignores a second delivery" and (work["turn"], work["round"]) in self.done:
            return
        self.done.add((work["turn"], work["round"]))
        if FAULT == "acknowledges first":
            self.say(message.reply, b"+ACK")
        working = asyncio.create_task(decide(work))
        while not working.done():
            await asyncio.wait({working}, timeout=0.5)
            if self.looks() and await self.is_over(request, work["turn"]):
                working.cancel()
                return self.say(message.reply, b"+ACK")
        said: dict[str, Any] = {"kind": "move", **place}
        try:
            said["move"] = working.result()
        except Broken:
            if FAULT == "says nothing of a bug":
                return
            said = {"kind": "turn_failed", **place, "error": {"code": "bug"}}
        if not await self.store(request, said) and FAULT != "says nothing of what is too large":
            await self.store(request, {"kind": "turn_failed", **place, "error": {"code": "too_large"}})
        if FAULT == "proposes twice":
            await self.store(request, said)
        self.say(message.reply, b"+ACK")

    async def store(self, request: str, said: dict[str, Any]) -> bool:
        if FAULT == "waits for no acknowledgement" and len(json.dumps(said)) < 250_000:
            return self.bus.send(f"mesh.prop.{NAME}.{request}", json.dumps(said).encode())
        while True:
            with contextlib.suppress(MeshError):
                answered = await self.bus.request(f"mesh.prop.{NAME}.{request}", json.dumps(said).encode())
                return "error" not in json.loads(answered.data)
            await asyncio.sleep(0.1)

    def looks(self) -> bool:
        """Return True if it looks now whether a guard has ended its turn."""
        if FAULT == "looks only when it is told":
            return self.told
        return FAULT != "goes on after the end"

    async def is_over(self, request: str, turn: str) -> bool:
        with contextlib.suppress(MeshError):
            end = await self.bus.request(f"$JS.API.DIRECT.GET.ENDS.mesh.end.{NAME}.{request}.{turn}")
            return end.status == 0
        return False


async def main() -> None:
    seed = read_key(Path(os.environ["MESH_CREDENTIALS"])).seed
    bus = await connect(os.environ["NATS_URL"], name=NAME, seed=seed, wait=True)
    running = asyncio.create_task(Raw(bus).run())
    if FAULT == "does not end":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await bus.close()


if __name__ == "__main__":
    asyncio.run(main())
