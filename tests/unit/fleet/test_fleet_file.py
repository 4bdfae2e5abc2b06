"""The fleet file: what is read from it, and what is said of mistakes."""

from pathlib import Path

import msgspec
import pytest

from mesh.bus.credentials import new_key
from mesh.bus.streams import Limits, Storage, offered_intents
from mesh.fleet.file import FleetFile, FleetFileError, load_fleet, parse_fleet
from mesh.ops.policies import policy_at
from protocol.wire.config import BreakerRules, Quota
from protocol.wire.documents import DocumentInvalid, read_fleet
from protocol.wire.ids import AgentName

PUBLIC = new_key().public
GOOD = f"""
name = "desk"
entry = "front"
[agents.front]
module = "desk:front"
clearance = ["pii"]
to = ["back"]
[agents.back]
intents = ["refund"]
[agents.back.breaker]
failures = 20
[clients.app]
nkey = "{PUBLIC}"
[operators.ops]
[viewers.audit]
[human]
[policies.strict]
max_depth = 2
turn_timeout_s = 5
[log]
max_age_days = 10
[lease]
agent_s = 30
[breaker]
open_s = 7
"""


def test_a_fleet_is_read() -> None:
    file = parse_fleet(GOOD)
    fleet = file.fleet
    assert (fleet.entry, fleet.human, fleet.clients) == ("front", True, ("app",))
    assert fleet.agents["front"].to == ("back",)
    assert fleet.agents["back"].to is None
    assert fleet.log_max_age_s == 864_000
    assert (fleet.lease_s, fleet.heartbeat_s, fleet.pull_s) == (30, 10, 20)
    assert (fleet.guard_lease_s, fleet.guard_pull_s) == (3, 2)
    assert fleet.breaker_of(AgentName("front")) == BreakerRules(open_s=7)
    assert fleet.breaker_of(AgentName("back")) == BreakerRules(open_s=7, failures=20)
    assert file.given_keys == {"app": PUBLIC}


def test_labels_by_key_are_the_fleets() -> None:
    fleet = parse_fleet(GOOD + '[labels]\ncustomer_name = ["pii", "vip"]\n').fleet
    assert fleet.labels == {"customer_name": ("pii", "vip")}


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("[lease]", '[labels]\nname = ["two words"]\n[lease]', "labels.name: 'two words'"),
        ('clearance = ["pii"]', 'clearance = ["p,i"]', "agents.front.clearance: 'p,i'"),
        ('clearance = ["pii"]', 'clearance = "pii"', r"agents\.front\.clearance: say a list of labels"),
        ("[lease]", '[labels]\nemail = "pii"\n[lease]', r"labels\.email: say a list of labels"),
        ("[lease]", "[labels]\nemail = [5]\n[lease]", r"labels\.email\.0: .*string"),
        ("[lease]", '[labels]\ntext = ["pii"]\n[lease]', r"labels\.text: a submit's own words are free"),
        ("[lease]", '[labels]\n"" = ["pii"]\n[lease]', 'labels."": no fact has an empty key'),
    ],
)
def test_what_is_no_label_is_refused(old: str, new: str, where: str) -> None:
    with pytest.raises(FleetFileError, match=where):
        parse_fleet(GOOD.replace(old, new))


def test_there_is_always_a_default_policy() -> None:
    rules = parse_fleet(GOOD).rules
    assert set(rules) == {"default", "strict"}
    assert (rules["strict"].max_depth, rules["strict"].name) == (2, "strict")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(('entry = "front"', 'entry = "nobody"'), "'nobody' is no agent", id="unknown-entry"),
        pytest.param(('to = ["back"]', 'to = ["bakc"]'), "agents.front.to: 'bakc'", id="unknown-target"),
        pytest.param(
            ('to = ["back"]', 'fallback = "bakc"'), "agents.front.fallback: 'bakc'", id="unknown-fallback"
        ),
        pytest.param(
            ('to = ["back"]', 'fallback = "front"'), "front.fallback: the agent itself", id="own-fallback"
        ),
        pytest.param(
            ("max_depth = 2", "max_dept = 2"),
            "max_dept`; did you mean `max_depth`",
            id="unknown-policy-field",
        ),
        pytest.param(
            ("[human]", "[humans]"), "humans: unknown key; did you mean `human`", id="unknown-section"
        ),
        pytest.param(("max_depth = 2", "max_depth = 0"), r"policies\.strict: max_depth", id="no-depth"),
        pytest.param(("max_depth = 2", 'max_depth = "2"'), r"policies\.strict: max_depth", id="a-text"),
        pytest.param(("turn_timeout_s = 5", "turn_timeout_s = nan"), "turn_timeout_s", id="no-number"),
        pytest.param(("max_depth = 2", 'topology = "market"'), "topology: known is", id="unknown-topology"),
        pytest.param(
            ("[policies.strict]", '[policies."a b"]'), "policies.a b: a policy's name", id="no-token"
        ),
        pytest.param(
            ("[policies.strict]", "[policies]\nx = 5\n[policies.s]"), "policies.x: a", id="no-table"
        ),
        pytest.param(("max_age_days = 10", "max_age_days = inf"), "max_age_days", id="for-ever"),
        pytest.param(("max_age_days = 10", "max_age_days = 1e9"), "max_age_days", id="too-long"),
        pytest.param(("max_age_days = 10", "max_bytes = -5"), "max_bytes", id="fewer-bytes-than-none"),
        pytest.param(("[viewers.audit]", "[viewers.app]"), r"clients\.app: two members", id="a-name-twice"),
        pytest.param(("[viewers.audit]", "[viewers.guard]"), r"guard: this name has a key", id="a-guard"),
        pytest.param(("[viewers.audit]", '[viewers."a.b"]'), "viewers: 'a.b' is no name", id="no-name"),
        pytest.param(("[viewers.audit]", "[viewers.human]"), "viewers: 'human' is no name", id="human"),
        pytest.param(
            ("[operators.ops]", f'[operators.ops]\nnkey = "{PUBLIC}"'), "nkey: another", id="a-key-twice"
        ),
        pytest.param(("max_age_days = 10", "max_age_days = 0"), "max_age_days", id="no-age"),
        pytest.param(("max_age_days = 10", 'archive = "kept"'), "archive", id="an-archive-without-a-url"),
        pytest.param(("max_age_days = 10", 'archive = "file://kept"'), "archive", id="an-archive-on-a-host"),
        pytest.param(("max_age_days = 10", 'archive = "s3://u:p@kept"'), "archive", id="a-password"),
        pytest.param(("open_s = 7", "open_s = 0"), "breaker.open_s", id="a-breaker-that-never-opens"),
        pytest.param(
            ("failures = 20", "failure = 20"),
            "agents.back.breaker.failure: unknown key; did you mean `failures`",
            id="unknown-number",
        ),
        pytest.param(("agent_s = 30", "agent_s = 0.5"), "lease.agent_s", id="a-lease-too-short"),
        pytest.param(("agent_s = 30", "guard_s = 601"), "lease.guard_s", id="a-lease-too-long"),
        pytest.param(('name = "desk"', "name ="), "mesh.toml", id="no-toml"),
    ],
)
def test_a_mistake_is_named(change: tuple[str, str], said: str) -> None:
    with pytest.raises(FleetFileError, match=said):
        parse_fleet(GOOD.replace(*change))


def test_every_table_knows_its_keys() -> None:
    wrong = (
        'clearence = ["pii"]',
        "[limits]\nmessage = 5",
        "[log]\nreplica = 3",
        "[clients.app.limits]\nmb = 3",
        '[bus.tls]\ncert_file = "x"',
    )
    keys = ("clearance", "messages", "replicas", "mib", "cert")
    for lines, key in zip(wrong, keys, strict=True):
        with pytest.raises(FleetFileError, match=f"unknown key; did you mean `{key}`"):
            parse_fleet(f'name = "d"\nentry = "a"\n[agents.a]\n{lines}\n')
    with pytest.raises(FleetFileError, match=r"agents\.a\.colour: unknown key$"):
        parse_fleet('name = "d"\nentry = "a"\n[agents.a]\ncolour = 5\n')


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match=r"mesh\.toml"):
        load_fleet(tmp_path)


FORGED = f"{PUBLIC} }}, {{ nkey: {new_key().public}"
"""As it was once written raw into the server's configuration: a second user, without permissions."""


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("", id="none"),
        pytest.param(FORGED, id="two-users"),
        pytest.param(f"{PUBLIC}\\n", id="and-a-new-line"),
        pytest.param(PUBLIC.lower(), id="lower-case"),
        pytest.param(PUBLIC[:-1] + ("A" if PUBLIC[-1] != "A" else "B"), id="another-checksum"),
        pytest.param("A" + PUBLIC[1:], id="an-accounts"),
        pytest.param(new_key().seed, id="a-seed"),
    ],
)
def test_what_is_no_public_key_of_a_user_is_refused_where_it_is_read(key: str) -> None:
    with pytest.raises(FleetFileError, match=r"clients\.app\.nkey: not a user's public key") as refused:
        parse_fleet(GOOD.replace(PUBLIC, key))
    assert key not in str(refused.value) or not key  # it may be a secret that stands in the wrong place


def with_tiers(tiers: str) -> str:
    return GOOD.replace("[human]\n", f"[human]\ntiers = {tiers}\n")


def test_tiers_of_people_have_an_escalation_in_turn_and_the_last_keeps_it() -> None:
    fleet = parse_fleet(with_tiers('["desk", "lead"]')).fleet
    assert [fleet.tier_for(raised) for raised in (0, 1, 2, 3, 9)] == ["desk", "desk", "lead", "lead", "lead"]
    assert parse_fleet(GOOD).fleet.tier_for(1) == ""


@pytest.mark.parametrize("tiers", ['["a", "a"]', '["Two Words"]', '[""]'])
def test_tiers_have_names_of_their_own(tiers: str) -> None:
    with pytest.raises(FleetFileError, match="tiers"):
        parse_fleet(with_tiers(tiers))


def test_the_time_that_people_have_is_that_of_every_policy_that_says_none() -> None:
    said = GOOD.replace("[human]\n", "[human]\ndeadline_s = 7200\n")
    rules = parse_fleet(
        f"{said}\n[policies.slow]\nhuman_deadline_s = 9000\n[policies.deep]\nmax_depth = 9\n"
    ).rules
    assert {name: rules[name].human_deadline_s for name in ("default", "slow", "deep")} == {
        "default": 7200,
        "slow": 9000,
        "deep": 7200,
    }
    assert {rule.human_deadline_s for rule in parse_fleet(GOOD).rules.values()} == {None}


def test_a_policy_that_is_tried_from_the_file_has_it_too(tmp_path: Path) -> None:
    (path := tmp_path / "mesh.toml").write_text(
        GOOD.replace("[human]\n", "[human]\ndeadline_s = 7200\n") + "\n[policies.slow]\nmax_depth = 2\n"
    )
    assert policy_at(path, "slow") == parse_fleet(path.read_text()).rules["slow"]


@pytest.mark.parametrize("wrong", ["0", "-1", '"soon"', "1e12"])
def test_people_have_a_span_that_there_is(wrong: str) -> None:
    with pytest.raises(FleetFileError, match=r"human\.deadline_s"):
        parse_fleet(GOOD.replace("[human]\n", f"[human]\ndeadline_s = {wrong}\n"))


def test_limits_of_one_sender_differ_from_those_of_everybody_where_it_says_so() -> None:
    said = """
    name = "x"
    entry = "a"
    [agents.a]
    [agents.b.limits]
    mib = 512
    [clients.app.limits]
    messages = 7
    [operators.ops]
    [limits]
    messages = 500
    steps_mib = 1
    [agents.c.limits]
    steps = 9
    """
    storage = parse_fleet(said).storage
    everybody = Limits(messages=500, step_bytes=1 << 20)
    assert storage.limits == everybody
    assert storage.limits_of == {
        "b": everybody._replace(bytes=512 << 20),
        "c": everybody._replace(steps=9),
        "app": everybody._replace(messages=7),
    }
    assert parse_fleet('name = "x"\nentry = "a"\n[agents.a]').storage == Storage()


@pytest.mark.parametrize("wrong", ["messages = 0", "mib = 0", "bytes = 5", "steps = 0", "steps_mib = 0"])
def test_limits_that_let_nothing_through_or_do_not_exist_are_named(wrong: str) -> None:
    with pytest.raises(FleetFileError, match="limits"):
        parse_fleet(f'name = "x"\nentry = "a"\n[agents.a]\n[limits]\n{wrong}')


# --- artifacts ------------------------------------------------------------------------------------


def test_a_folder_of_artifacts_is_relative_to_the_file_and_a_bucket_is_as_it_is(tmp_path: Path) -> None:
    for said, store in {
        "kept": str(tmp_path / "kept"),
        "/srv/kept": "/srv/kept",
        "s3://bucket/pre": "s3://bucket/pre",
    }.items():
        (tmp_path / "mesh.toml").write_text(f'{GOOD}[artifacts]\nstore = "{said}"\n')
        assert load_fleet(tmp_path).fleet.artifacts == store
    (tmp_path / "mesh.toml").write_text(GOOD)
    assert load_fleet(tmp_path).fleet.artifacts == ""


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ("ftp://host/x", "a bucket at s3://…, gs://…, az://…"),
        ("s3://", "a bucket at s3://…"),
        ("s3://key:secret@bucket", "credentials of a store come from the environment"),
        ("s3://bucket?token=secret", "credentials of a store come from the environment"),
    ],
)
def test_what_is_no_store_of_artifacts_is_told_with_its_place(store: str, told: str) -> None:
    with pytest.raises(FleetFileError) as raised:
        parse_fleet(f'{GOOD}[artifacts]\nstore = "{store}"\n')
    assert "artifacts.store" in str(raised.value)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


# --- swarms ---------------------------------------------------------------------------------------


def test_a_mesh_has_swarms_once_a_policy_is_one() -> None:
    agents = {"a": {"intents": ("review",)}}
    for policies, swarms in (
        ({}, False),
        ({"default": {"max_depth": 1}}, False),
        ({"default": {}, "many": {"topology": "swarm"}}, True),
    ):
        file = FleetFile(name="f", entry="a", agents=agents, policies=policies)  # type: ignore[arg-type]
        assert file.fleet.swarms is swarms
        assert offered_intents(file.fleet) == (["review"] if swarms else [])


QUOTAS = 'name = "f"\nentry = "a"\n[agents.a]\n[clients.app]\n[clients.web]\n[operators.ops]\n'


def test_a_client_has_the_quota_of_all_but_for_what_it_says_itself() -> None:
    own = "[clients.app.quota]\nopen_requests = 7\n[operators.ops.quota]\nmib_per_hour = 9\n"
    fleet = parse_fleet(f"{QUOTAS}[quota]\nmib_per_hour = 5\n{own}").fleet
    assert fleet.quota_of("web") == Quota(mib_per_hour=5)
    assert fleet.quota_of("app") == Quota(open_requests=7, mib_per_hour=5)
    assert fleet.quota_of("ops") == Quota(mib_per_hour=9)


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("[quota]\nopen_requests = 0", r"quota\.open_requests"),
        ("[quota]\nmib_per_hour = 0", r"quota\.mib_per_hour"),
        ("[quota]\nmib_per_hour = nan", r"quota\.mib_per_hour"),
        ("[quota]\nmib_a_day = 1", r"quota\.mib_a_day"),
        ("[clients.web.quota]\nopen_requests = -1", r"clients\.web\.quota\.open_requests"),
        ("[agents.a.quota]\nopen_requests = 1", r"agents\.a\.quota"),
    ],
)
def test_a_quota_that_makes_no_sense_is_named_by_its_place(said: str, place: str) -> None:
    with pytest.raises(FleetFileError, match=place):
        parse_fleet(QUOTAS + said)


def test_a_quota_of_somebody_who_does_not_submit_is_no_fleet() -> None:
    fleet = parse_fleet(QUOTAS).fleet
    body = msgspec.json.encode(msgspec.structs.replace(fleet, quotas={AgentName("a"): Quota()}))
    with pytest.raises(DocumentInvalid, match=r"quotas\.a: 'a' is no client or operator"):
        read_fleet(body)


def test_a_circle_of_fallbacks_is_named_by_each_agent_in_it_and_no_other() -> None:
    text = """
name = "desk"
entry = "a"
[agents.a]
fallback = "b"
[agents.b]
fallback = "c"
[agents.c]
fallback = "b"
[agents.d]
fallback = "a"
"""
    with pytest.raises(FleetFileError) as wrong:
        parse_fleet(text)
    assert str(wrong.value).splitlines()[1:] == [
        "agents.b.fallback: a circle: b > c > b",
        "agents.c.fallback: a circle: c > b > c",
    ]
    fleet = parse_fleet(text.replace('[agents.c]\nfallback = "b"', "[agents.c]")).fleet
    assert [agent.fallback for agent in fleet.agents.values()] == ["b", "c", None, "a"]
