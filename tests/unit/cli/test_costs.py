"""``finetune costs``: what is summed, from where, and what a caller without access gets."""

import asyncio
import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from finetune_operator.artifacts.port import (
    NAMES_LIMIT,
    RECORD_LIMIT,
    RecordStore,
    StorageDenied,
    StorageUnavailable,
)
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.cli.commands import app
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.jobs.costs import CostQuery, day_named, parse_by, show_costs, show_ledger
from finetune_operator.cli.ledger import ledger_named
from finetune_operator.ledger.layout import record_uri
from finetune_operator.ledger.record import LedgerRecord
from tests.unit.cli.fake_api import FakeApi
from tests.unit.ledger.test_record import record

SINCE, TODAY = date(2026, 11, 1), date(2026, 11, 21)
OTHER = "11111111-8d0e-4c39-a7d6-1f1f0c1d2e3f"
RECORDS = (
    record(
        number=1, chip_hours="10", cost="8", labels={"team": "nlp"}, profile="small", model="Qwen/Qwen3-0.6B"
    ),
    record(
        number=2, chip_hours="0.5", cost="1.35", capacity="OnDemand", labels={"team": "nlp"}, profile="small"
    ),
    record(
        namespace="team-b",
        uid=OTHER,
        chip_hours="100.000001",
        cost=None,
        currency=None,
        day=date(2026, 11, 2),
        profile="large",
    ),
    record(number=9, day=date(2026, 10, 31), chip_hours="1000"),
)


async def ledger(folder: Path, records: Sequence[LedgerRecord] = RECORDS) -> str:
    uri = f"file://{folder}/ledger"
    for each in records:
        assert await SharedStore().create(record_uri(uri, each), each.to_json())
    return uri


def query(**values: Any) -> CostQuery:
    return CostQuery(**{"by": "namespace", "since": SINCE, "until": TODAY} | values)


async def summed(uri: str, **values: Any) -> Any:
    written: list[str] = []
    await show_ledger(SharedStore(), uri, query(output="json", **values), written.append)
    return json.loads("\n".join(written))


async def test_the_ledger_is_summed_by_namespace_with_exact_amounts(tmp_path: Path) -> None:
    found = await summed(await ledger(tmp_path))
    assert found["source"] == "ledger"
    assert (found["since"], found["until"]) == ("2026-11-01", "2026-11-21")
    large, small = found["groups"]
    assert large == {
        "group": "team-b",
        "jobs": 1,
        "attempts": 1,
        "chipHours": "100.000001",
        "chipHoursByCapacity": {"Spot": "100.000001"},
        "cost": {},
        "unpricedChipHours": "100.000001",
    }
    assert small["chipHoursByCapacity"] == {"OnDemand": "0.5", "Spot": "10"}
    assert (small["jobs"], small["attempts"], small["cost"]) == (1, 2, {"USD": "9.35"})
    assert found["total"]["chipHours"] == "110.500001"


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("profile", ["large", "small"]),
        ("model", ["", "Qwen/Qwen3-0.6B"]),
        ("label=team", ["", "nlp"]),
        ("label=absent", [""]),
    ],
)
async def test_groups_are_those_of_the_field(tmp_path: Path, by: str, groups: list[str]) -> None:
    found = await summed(await ledger(tmp_path), by=by)
    assert [each["group"] for each in found["groups"]] == groups


async def test_one_namespace_alone_is_read(tmp_path: Path) -> None:
    found = await summed(await ledger(tmp_path), namespace="team-b")
    assert [each["group"] for each in found["groups"]] == ["team-b"]


async def test_a_day_before_the_first_does_not_count(tmp_path: Path) -> None:
    uri = await ledger(tmp_path)
    assert (await summed(uri, since=date(2026, 10, 31)))["total"]["chipHours"] == "1110.500001"


async def test_an_attempt_that_is_recorded_on_two_days_counts_once(tmp_path: Path) -> None:
    twice = (record(chip_hours="2", day=date(2026, 11, 3)), record(chip_hours="3", day=date(2026, 11, 4)))
    interim = record(chip_hours="24", day=date(2026, 11, 2), outcome="Running")
    found = await summed(await ledger(tmp_path, (*twice, interim)))
    assert found["total"]["chipHours"] == "27"


async def test_garbage_in_the_ledger_is_counted_and_spoils_nothing(tmp_path: Path) -> None:
    uri = await ledger(tmp_path)
    folder = tmp_path / "ledger" / "v1" / "2026-11-05" / "team-a" / "x"
    folder.mkdir(parents=True)
    (folder / "train-1.json").write_bytes(b"\x00" * 100)
    (folder / "train-2.json").write_bytes(b"[" * 2**20)
    (folder / "readme.txt").write_text("not a record")
    found = await summed(uri)
    assert (found["unreadable"], found["total"]["chipHours"]) == (2, "110.500001")


async def test_the_table_is_rounded_and_names_its_source(tmp_path: Path) -> None:
    uri, lines = await ledger(tmp_path), list[str]()
    await show_ledger(SharedStore(), uri, query(output="wide"), lines.append)
    assert lines == [
        f"Ledger {uri}, 2026-11-01 to 2026-11-21 (UTC). Attempts that still run count up to yesterday.",
        "NAMESPACE   JOBS   ATTEMPTS   CHIP HOURS   ONDEMAND HOURS   SPOT HOURS   COST",
        "team-b      1      1          100.00       0.00             100.00       100.00 h unpriced",
        "team-a      1      2          10.50        0.50             10.00        9.35 USD",
        "TOTAL       2      3          110.50       0.50             110.00       9.35 USD + 100.00 h unpriced",
    ]


async def test_control_characters_of_a_model_do_not_reach_the_terminal(tmp_path: Path) -> None:
    uri, lines = await ledger(tmp_path, [record(model="gs://x/\x1b[2Jy\nTOTAL")]), list[str]()
    await show_ledger(SharedStore(), uri, query(by="model"), lines.append)
    assert "\x1b" not in "".join(lines)
    assert len(lines) == 4


async def test_an_empty_ledger_has_a_total_of_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    await show_ledger(SharedStore(), f"file://{tmp_path}/none", query(), lines.append)
    assert lines[-1].split() == ["TOTAL", "0", "0", "0.00", "-"]


class Refusing:
    """A store that answers every call with an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        raise self._error

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        raise self._error

    async def create(self, uri: str, content: bytes) -> bool:
        raise self._error


async def test_a_ledger_that_cannot_be_read_is_one_error() -> None:
    denied = Refusing(StorageDenied("gs://ledger/v1/2026-11-21", "no storage.objects.list access"))
    with pytest.raises(
        CliError, match="The ledger cannot be read: gs://ledger/v1/2026-11-21: no storage"
    ) as caught:
        await show_ledger(denied, "gs://ledger", query(), print)
    assert "application-default login" in caught.value.fix


def deployment(uri: str, name: str = "finetune-operator") -> dict[str, Any]:
    env = [{"name": "FINETUNE_LOG_LEVEL", "value": "info"}, {"name": "FINETUNE_LEDGER", "value": uri}]
    return {
        "metadata": {"name": name, "namespace": "finetune-system"},
        "spec": {"template": {"spec": {"containers": [{"name": "operator", "env": env}]}}},
    }


def job(
    name: str,
    namespace: str = "team-a",
    hours: str = "2",
    as_of: str = "2026-11-20T10:00:00Z",
    created: str = "2026-10-01T00:00:00Z",
) -> dict[str, Any]:
    status = {
        "cost": {"chipHours": hours, "amount": "3", "currency": "USD"},
        "activeTime": {"seconds": 10, "asOf": as_of},
        "attempts": {"total": 3},
        "resolved": {
            "profile": {"name": "small"},
            "model": {"source": "m"},
            "resources": {"capacity": "Spot"},
        },
    }
    metadata = {"name": name, "namespace": namespace, "uid": name, "creationTimestamp": created}
    return {"metadata": metadata, "status": status}


async def shown(connection: Connection, store: RecordStore, **values: Any) -> Any:
    written: list[str] = []
    await show_costs(
        connection, store, "finetune-system", False, query(output="json", **values), written.append
    )
    return json.loads("\n".join(written))


async def test_the_ledger_is_the_one_that_the_operator_names(
    api: FakeApi, connection: Connection, tmp_path: Path
) -> None:
    await api.put("deployments", deployment(await ledger(tmp_path)))
    assert (await shown(connection, SharedStore()))["source"] == "ledger"


async def test_two_operators_with_two_ledgers_are_an_error(api: FakeApi, connection: Connection) -> None:
    await api.put("deployments", deployment("gs://one"))
    await api.put("deployments", deployment("gs://two", "other"))
    with pytest.raises(CliError, match="gs://one, gs://two"):
        await shown(connection, SharedStore())


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("gs://ledger", "you may not read the ledger gs://ledger"),
        ("", "no operator in namespace finetune-system"),
    ],
)
async def test_without_access_to_the_ledger_the_statuses_are_summed_and_named_so(
    api: FakeApi, connection: Connection, uri: str, why: str
) -> None:
    await api.put("deployments", deployment(uri))
    await api.put("finetunejobs", job("one"))
    await api.put("finetunejobs", job("two", hours="0.25"))
    await api.put("finetunejobs", job("long-ago", as_of="2026-10-01T00:00:00Z"))
    await api.put("finetunejobs", {"metadata": {"name": "new", "namespace": "team-a", "uid": "new"}})
    found = await shown(connection, Refusing(StorageDenied("gs://ledger", "no")))
    assert found["source"] == "statuses"
    assert why in found["why"]
    assert (found["total"]["chipHours"], found["total"]["jobs"], found["total"]["attempts"]) == ("2.25", 2, 6)


async def test_statuses_say_that_they_have_no_days_and_leave_out_jobs_created_later(
    api: FakeApi, connection: Connection
) -> None:
    await api.put("finetunejobs", job("one"))
    await api.put("finetunejobs", job("later", created="2026-11-11T00:00:00Z"))
    written: list[str] = []
    period = query(until=date(2026, 11, 10))
    await show_costs(connection, SharedStore(), "finetune-system", False, period, written.append)
    assert written[0].startswith(
        "Statuses of the existing jobs of namespace team-a, created by 2026-11-10 (UTC)"
    )
    assert "usage of these jobs before and after these days is included" in written[0]
    assert written[-1].split()[:2] == ["TOTAL", "1"]


async def test_a_ledger_that_is_away_is_not_replaced_by_statuses(
    api: FakeApi, connection: Connection
) -> None:
    await api.put("deployments", deployment("gs://ledger"))
    with pytest.raises(CliError, match="does not respond"):
        await shown(connection, Refusing(StorageUnavailable("gs://ledger", "no response within 20 s")))


async def test_a_caller_who_may_not_read_deployments_gets_the_statuses(
    api: FakeApi, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from finetune_operator.cluster.port import Rejected

    async def forbidden(*_: object, **__: object) -> list[Any]:
        raise Rejected("deployments.apps is forbidden", status=403)

    monkeypatch.setattr(connection, "list", forbidden)
    await api.put("finetunejobs", job("one"))
    found = await shown(connection, SharedStore())
    assert (found["source"], found["namespace"], found["total"]["chipHours"]) == ("statuses", "team-a", "2")
    assert "403" in found["why"]


@pytest.mark.parametrize(
    ("given", "day"),
    [("30d", date(2026, 10, 22)), ("0d", TODAY), ("2026-11-01", SINCE)],
)
def test_a_day_is_a_date_or_days_before_today(given: str, day: date) -> None:
    assert day_named(given, TODAY) == day


@pytest.mark.parametrize("given", ["", "30", "-1d", "2026-13-01", "2027-01-01", "99999d", "30 d", "٣d"])
def test_any_other_day_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=given or "neither"):
        day_named(given, TODAY)


def test_groupings_and_uris_are_checked() -> None:
    assert parse_by("label=example.com/team") == "label=example.com/team"
    for wrong in ("", "label=", "team", "Namespace"):
        with pytest.raises(ValueError, match="label=KEY"):
            parse_by(wrong)
    assert ledger_named("gs://ledger/prod/") == "gs://ledger/prod"
    for wrong in ("ledger", "s3://x", "gs://", "file://x", "gs://a b"):
        with pytest.raises(ValueError, match="gs://bucket/folder"):
            ledger_named(wrong)


def test_the_last_day_is_included_and_later_ones_are_not(tmp_path: Path) -> None:
    uri = asyncio.run(ledger(tmp_path))
    period = ["--since", "2026-10-01", "--until", "2026-10-31"]
    result = CliRunner().invoke(app, ["costs", "--ledger", uri, "-o", "json", *period])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["since"], found["until"]) == ("2026-10-01", "2026-10-31")
    assert found["total"]["chipHours"] == "1000"


def test_the_command_needs_no_cluster_with_a_ledger(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/ledger"
    result = CliRunner().invoke(app, ["costs", "--ledger", uri, "-o", "json"], env={"KUBECONFIG": "/none"})
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["total"]["chipHours"] == "0"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--by", "team"],
        ["--since", "soon"],
        ["--until", "soon"],
        ["--until", "2999-01-01"],
        ["--since", "2026-10-01", "--until", "2026-09-30"],
        ["--ledger", "nowhere"],
        ["-o", "xml"],
    ],
)
def test_a_wrong_argument_has_exit_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["costs", *arguments], env={"KUBECONFIG": "/none"}).exit_code == 2
