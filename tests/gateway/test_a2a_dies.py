"""An agent that is killed with -9 in the middle of its streams: clients subscribe again, and miss nothing."""

import contextlib
import re
import signal
from pathlib import Path

import httpx
from a2a.types import a2a_pb2 as wire
from a2a.utils.errors import A2AError

from mesh.gateway.tokens import add_token
from protocol.wire.moves import Ask, Complete
from tests.gateway.a2a import FLEET_FILE, says, sdk_client, state, told
from tests.gateway.test_dies import gateway_process
from tests.guard.stage import Stage


async def test_a_client_whose_agent_is_killed_subscribes_again_and_misses_nothing(
    stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    token, _ = add_token(tokens, "c1")
    (tmp_path / "mesh.toml").write_text(FLEET_FILE)
    agent, sent, port = await stage.actor("a"), says("x"), "0"
    asked, task, done = list[str](), wire.Task(), list[wire.StreamResponse]()
    for round_ in range(3):
        more = ("--a2a", "--fleet", str(tmp_path))
        async with (
            gateway_process(stage, tmp_path, tokens, *more, port=port) as (address, process),
            sdk_client(address, token) as client,
        ):
            port = (re.search(r":(\d+)$", address) or ["", ""])[1]  # the next one takes its place
            wanted = wire.SubscribeToTaskRequest(id=task.id)
            heard = client.subscribe(wanted) if task.id else client.send_message(sent)
            first = (await anext(heard)).task
            assert task.id in ("", first.id)
            assert task.context_id in ("", first.context_id)
            task = first
            work = await agent.work(task.id, round_=round_)
            if round_ == 2:
                await agent.propose(task.id, work, Complete(answer="done"))
                done = [each async for each in heard]
                break
            question = Ask(to_agent=work.handoff.from_agent, question=f"{round_}?")
            await agent.propose(task.id, work, question)
            async for each in heard:
                if state(each.status_update) == "input_required":
                    asked.append(each.status_update.status.message.parts[0].text)
            reply = says(str(round_), taskId=task.id)
            reply.configuration.return_immediately = True
            async for _ in client.send_message(reply):
                process.send_signal(signal.SIGKILL)  # it has the reply, and is in the middle of its stream
                break
            with contextlib.suppress(A2AError, httpx.HTTPError):
                await told(client, says("nobody hears it"))
                raise AssertionError("it lives")
    assert asked == ["0?", "1?"]
    assert done[-2].artifact_update.artifact.parts[0].text == "done"
    assert state(done[-1].status_update) == "completed"
    assert (await stage.types(task.id)).count("request.opened") == 1
