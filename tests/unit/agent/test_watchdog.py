"""The watchdog names what blocks the loop."""

import time

from mesh.agent._executor import Watchdog
from tests.logs import captured_logs
from tests.servers import PATIENCE_S


async def test_a_blocked_loop_is_named_with_its_line() -> None:
    with captured_logs() as logs, Watchdog(blocked_s=0.05) as watchdog:
        deadline = time.monotonic() + PATIENCE_S
        while not watchdog.found and time.monotonic() < deadline:
            pass  # blocks the loop, which is the point
    assert logs[0]["event"] == "loop_blocked"
    assert "test_watchdog.py" in logs[0]["stack"]
