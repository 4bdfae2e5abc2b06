"""Steps in memory, under the same contract as those in JetStream."""

from mesh.bus.step_store import StepTaken


class MemorySteps:
    """One agent's steps. `written` counts what was stored."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str, str], bytes] = {}

    @property
    def written(self) -> int:
        return len(self.steps)

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        return self.steps.get((request, turn, name))

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        if (request, turn, name) in self.steps:
            raise StepTaken(name)
        self.steps[request, turn, name] = body
