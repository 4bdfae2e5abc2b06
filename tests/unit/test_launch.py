"""How soon a service that died is started again."""

import pytest

from mesh.local.fleet import next_try


@pytest.mark.parametrize(("tries", "pause_s"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 5.0), (4, 15.0), (9, 15.0)])
def test_one_that_dies_at_once_waits_longer_each_time(tries: int, pause_s: float) -> None:
    assert next_try(tries, ran_s=0.1) == (tries + 1, pause_s)


def test_one_that_ran_for_long_is_started_again_at_once() -> None:
    assert next_try(4, ran_s=3600.0) == (1, 0.5)
