"""`mesh request show` of a request that has asked somebody: who has to reply, and how."""

import pytest

from tests.system.office import Office


@pytest.mark.parametrize(
    ("whom", "said"),
    [
        pytest.param("c1", "it is given under c1's own key: mesh human reply {} '…' --as c1", id="client"),
        pytest.param("human", "it is given under an operator's key: mesh human reply {} '…'", id="people"),
    ],
)
async def test_whoever_looks_sees_who_has_to_reply_and_how(office: Office, whom: str, said: str) -> None:
    request = await office.asked(whom)
    last = (await office.mesh("request", "show", request)).out.splitlines()[-1]
    assert last.startswith(f"waits for {whom} since ")
    assert last.endswith(f": a question waits for its reply; {said.format(request)}")
