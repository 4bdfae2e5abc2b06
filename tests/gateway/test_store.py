"""The gateway's file: what a key stands for outlives the process, and so does what is to be posted."""

import contextlib
from pathlib import Path

import pytest

from mesh.errors import UsageWrong
from mesh.gateway.store import KEY_LASTS_S, GatewayStore, HookedRequest

NOW_S = 1_800_000_000.0


def opened(folder: Path) -> contextlib.closing[GatewayStore]:
    return contextlib.closing(GatewayStore(folder))


def test_a_key_stands_for_its_request_for_a_day_and_then_for_another(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = store.keep("app", "k", "digest", NOW_S)
    assert first.is_new
    with opened(tmp_path) as store:
        for later_s in (1, 3_600, KEY_LASTS_S - 1):
            again = store.keep("app", "k", "another digest", NOW_S + later_s)
            assert again == (first.request, "digest", False)
        late = store.keep("app", "k", "another digest", NOW_S + KEY_LASTS_S + 1)
    assert late.is_new
    assert late.request != first.request


def test_news_is_wanted_until_the_end_was_taken(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        keyed = store.keep("app", "k", "digest", NOW_S, hook="t1").request
        store.keep("app", "other", "digest", NOW_S)
        alone = HookedRequest(keyed, "app", "t1")
        assert store.hooked() == [alone]
        store.mark_posted(keyed, 3)
    with opened(tmp_path) as store:
        assert store.hooked() == [alone]
        assert store.posted(keyed) == {3}
        store.unhook(keyed)
        assert not store.keep("app", "k", "digest", NOW_S + 60, hook="t1").is_new
        assert (store.hooked(), store.posted(keyed)) == ([], frozenset())


def test_a_file_that_is_none_or_of_another_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "gateway.sqlite").write_bytes(b"not a file of SQLite" * 100)
    with pytest.raises(UsageWrong, match=r"gateway\.sqlite"):
        GatewayStore(tmp_path)
