"""The records: created once by whoever comes first, shared by several processes, never half-done."""

import os
import re
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agents.records import once, transaction
from agents.support import billing, connected, technical
from mesh.agent.errors import Retry, ToolArgumentsInvalid
from tests.deploy.validator import DEPLOY
from tests.servers import PATIENCE_S

pytestmark = pytest.mark.usefixtures("records")

COUNT = """
import sys
from agents.support import connected
sys.stdin.readline()
with connected() as db:
    print(*(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("customers", "charges")))
"""

MODES = """
import os
from pathlib import Path
from agents.support import RECORDS, connected
os.umask(int(os.environ["UMASK"], 8))
with connected() as db:
    db.execute("UPDATE customers SET since = since")
    print(*(f"{file.stat().st_mode & 0o777:o}" for file in sorted(RECORDS.path().parent.glob("*.db*"))))
"""


def test_the_seed_is_consistent() -> None:
    with connected() as db:
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        strangers = """
            SELECT c.id FROM charges c JOIN subscriptions s ON s.id = c.subscription_id
            WHERE s.customer_id <> c.customer_id
        """
        assert db.execute(strangers).fetchall() == []
        over = (
            "SELECT r.charge_id FROM refunds r JOIN charges c ON c.id = r.charge_id WHERE r.cents > c.cents"
        )
        assert db.execute(over).fetchall() == []
        early = """
            SELECT c.id FROM charges c JOIN customers p ON p.id = c.customer_id WHERE c.day < p.since
        """
        assert db.execute(early).fetchall() == []


def test_several_processes_at_once_find_it_filled_once() -> None:
    command = [sys.executable, "-c", COUNT]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    try:
        for process in processes:  # each waits for its line, so that they begin together
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = {process.communicate(timeout=PATIENCE_S)[0].strip() for process in processes}
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert all(process.returncode == 0 for process in processes)
    with connected() as db:
        found = [
            db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("customers", "charges")
        ]
    assert said == {f"{found[0]} {found[1]}"}


def test_agents_of_one_group_write_it_where_the_umask_lets_them() -> None:
    """Each agent has a user of its own under systemd, and all of them one group."""
    unit = (DEPLOY / "systemd" / "mesh-agent@.service").read_text()
    (umask,) = re.findall(r"^UMask=(\d+)$", unit, re.MULTILINE)
    ran = subprocess.run(
        [sys.executable, "-c", MODES],
        env={**os.environ, "UMASK": umask},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert ran.stdout.split() == ["660"] * 3  # the database, its log and that log's index


def test_a_reader_that_comes_while_it_is_made_spoils_nothing(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, connect = records / "support.db", sqlite3.connect
    readers: list[sqlite3.Connection] = []

    class Watched(sqlite3.Connection):
        """Lets a reader in just before the journal's mode is switched, if there is a file to read."""

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith("PRAGMA journal_mode") and file.exists():
                readers.append(connect(file, isolation_level=None))
                readers[-1].execute("BEGIN")
                readers[-1].execute("SELECT count(*) FROM sqlite_master").fetchone()
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Watched))
    try:
        with connected() as db:
            assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
            assert db.execute("SELECT count(*) FROM customers").fetchone()[0] >= 20
    finally:
        for reader in readers:
            reader.close()


def test_a_process_that_dies_while_filling_it_leaves_no_database(records: Path) -> None:
    dying = (
        "import os\n"
        "from agents import records\n"
        "from agents.support import connected\n"
        "real, scripts = records.files, []\n"
        "def half(package):\n"
        "    scripts.append(package)\n"
        "    if len(scripts) == 2: os._exit(9)\n"
        "    return real(package)\n"
        "records.files = half\n"
        "with connected(): pass\n"
    )
    assert subprocess.run([sys.executable, "-c", dying], check=False).returncode == 9
    assert not (records / "support.db").exists()
    with connected() as db:
        assert db.execute("SELECT count(*) FROM customers").fetchone()[0] >= 20


def test_what_is_done_under_a_key_is_done_once() -> None:
    done: list[int] = []

    def do() -> dict[str, Any]:
        done.append(1)
        return {"number": len(done)}

    with connected() as db:
        assert once(db, "k", "test", do) == once(db, "k", "test", do) == {"number": 1}
        assert once(db, "other", "test", do) == {"number": 2}


def test_an_effect_that_fails_leaves_neither_itself_nor_its_key() -> None:
    def half() -> dict[str, Any]:
        db.execute("INSERT INTO refunds VALUES ('ch-9001', 4900, 'test', '2026-11-20')")
        raise ValueError("broke off")

    with connected() as db:
        with pytest.raises(ValueError, match="broke off"):
            once(db, "k", "test", half)
        assert db.execute("SELECT count(*) FROM refunds WHERE charge_id = 'ch-9001'").fetchone()[0] == 0
        assert once(db, "k", "test", lambda: {"done": True}) == {"done": True}


def test_a_database_that_stays_locked_is_a_matter_for_another_try(records: Path) -> None:
    with (
        connected() as holder,
        transaction(holder),
        pytest.raises(Retry),
        connected(busy_s=0.0) as db,
        transaction(db),
    ):
        pass


def test_another_error_of_the_database_is_no_matter_for_another_try() -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"), connected() as db:
        db.execute("SELECT * FROM parrots")


async def test_an_id_of_another_shape_never_reaches_the_database() -> None:
    with pytest.raises(ToolArgumentsInvalid, match="customer_id"):
        await billing.list_charges.run({"customer_id": "c-1001' OR '1'='1"})


def test_the_newest_charges_come_first() -> None:
    days = [charge["day"] for charge in billing.list_charges("c-1014")]
    assert days == sorted(days, reverse=True)
    assert days[0] == "2026-11-15"


def test_a_charge_is_refunded_once_for_each_key_and_never_twice() -> None:
    first = billing.refund_charge("ch-9001", "charged twice", "key-1")
    assert first == {
        "charge_id": "ch-9001",
        "amount": "49.00 EUR",
        "what": "Fiber 500, month 2026-11",
        "refunded": True,
    }
    assert billing.refund_charge("ch-9001", "charged twice", "key-1") == first
    again = billing.refund_charge("ch-9001", "charged twice", "key-2")
    assert (again["refunded"], again["why"]) == (False, "already_refunded")
    with connected() as db:
        assert db.execute("SELECT count(*) FROM refunds WHERE charge_id = 'ch-9001'").fetchone()[0] == 1
    assert billing.find_duplicate_charges("c-1001") == []


@pytest.mark.parametrize(
    ("charge", "why"),
    [
        pytest.param("ch-9008", "already_refunded", id="refunded-before"),
        pytest.param("ch-2017-2611", "not_paid", id="never-paid"),
        pytest.param("ch-9010", "needs_approval", id="over-the-limit"),
    ],
)
def test_what_the_house_rules_forbid_is_a_result_that_says_so(charge: str, why: str) -> None:
    result = billing.refund_charge(charge, "asked for", "key")
    assert (result["refunded"], result["why"]) == (False, why)


def test_a_subscription_is_ended_once() -> None:
    (plan,) = billing.list_subscriptions("c-1009")
    ended = billing.cancel_subscription(plan["subscription_id"], "key-1")
    assert ended["cancelled"]
    assert billing.cancel_subscription(plan["subscription_id"], "key-1") == ended
    assert billing.cancel_subscription(plan["subscription_id"], "key-2")["why"] == "already_cancelled"
    assert billing.list_subscriptions("c-1009")[0]["status"] == "cancelled"


def as_text(value: Any) -> str:
    return str(value)


def test_nothing_that_technical_can_call_says_who_a_customer_is() -> None:
    shown = as_text(
        [
            technical.list_devices("c-1001"),
            technical.run_diagnostics("d-4001"),
            technical.reboot_device("d-4001", "k1"),
            technical.reset_device("d-4001", "k2"),
        ]
    )
    assert "Brandt" not in shown
    assert "@" not in shown
