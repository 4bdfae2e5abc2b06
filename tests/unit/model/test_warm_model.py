"""A vendor's SDK is loaded in a thread, and once that is done the first reply is as quick as the next."""

from pathlib import Path

import pytest

from tests.servers import ran
from tests.warm import COLD

FIRST_REPLY = """
import asyncio, io, logging, sys, threading

class Imports:
    found = []
    def find_spec(self, name, path=None, target=None):
        self.found.append((name, threading.current_thread() is threading.main_thread()))

sys.meta_path.insert(0, Imports())
from mesh.model import OpenAIModel
from mesh.model.vendors.claude import ClaudeModel
from mesh.model.port import Prompt
from tests.vendors.claude import StubClaude
from tests.vendors.openai import StubOpenAI
from tests.vendors.stand_in import calls

stubs = {"anthropic": (StubClaude, ClaudeModel), "openai": (StubOpenAI, OpenAIModel)}
sdk, warm = sys.argv[1], sys.argv[2] == "warm"
built, logged = [], io.StringIO()
logging.basicConfig(stream=logged, level="INFO")

def watch(frame, event, argument):
    if frame.f_code.co_name == "generate_schema":
        built.append(frame.f_code.co_filename)

async def main():
    Stub, Model = stubs[sdk]
    async with Stub([calls(("look", {"at": "it"}), text="I look.")]) as stub:
        model = Model("a-model", base_url=stub.url, api_key="stub")
        if warm:
            await asyncio.to_thread(model.warm)
            assert not stub.asked
            assert "HTTP" not in logged.getvalue()
            Imports.found.clear()
            sys.setprofile(watch)
        reply = await model.reply(Prompt(agent="a", instructions="", brief="hello"))
        sys.setprofile(None)
        assert reply.calls[0].name == "look"
        assert len(stub.asked) == logged.getvalue().count("HTTP Request") == 1
        await model.close()

assert sdk not in sys.modules
asyncio.run(main())
loaded = [name for name, in_loop in Imports.found if in_loop and (warm or name.startswith(sdk))]
assert not loaded, loaded
assert not built, built
"""


@pytest.mark.parametrize("start", ["warm", "cold"])
@pytest.mark.parametrize("sdk", ["anthropic", "openai"])
def test_a_first_reply_loads_nothing_in_the_loop(sdk: str, start: str, tmp_path: Path) -> None:
    script = tmp_path / "first_reply.py"
    script.write_text(FIRST_REPLY)
    done = ran(script, sdk, start, folder=tmp_path, **{COLD: "1"})
    assert done.returncode == 0, done.stderr
