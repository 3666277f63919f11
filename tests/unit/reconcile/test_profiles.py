import pytest

from finetune_operator.cluster.port import PROFILES, Rejected, Unavailable
from finetune_operator.reconcile.keys import ProfileKey
from finetune_operator.reconcile.profiles import ProfileReconciler
from tests.unit.lifecycle.world import profile
from tests.unit.reconcile.fakes import NOW, FakeCluster

KEY = ProfileKey("local")


def made(cluster: FakeCluster, used_by: int | None = 1) -> ProfileReconciler:
    return ProfileReconciler(cluster, used_by=lambda _: used_by, utc_now=lambda: NOW)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(PROFILES, profile())
    return cluster


async def test_a_status_is_written_once_and_again_when_the_number_of_jobs_moves(cluster: FakeCluster) -> None:
    for used_by in (1, 1, 2):
        await made(cluster, used_by).reconcile(KEY)
    assert cluster.of(PROFILES)[0]["status"]["usedBy"] == 2
    assert cluster.writes() == ["patch finetuneprofiles/status"] * 2


async def test_a_profile_that_is_gone_needs_nothing() -> None:
    cluster = FakeCluster()
    await made(cluster).reconcile(KEY)
    assert cluster.writes() == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("get finetuneprofiles", Unavailable("down", status=503)),
        ("patch finetuneprofiles/status", Rejected("forbidden", status=403)),
    ],
)
async def test_an_error_of_the_api_server_is_raised(
    cluster: FakeCluster, call: str, error: Exception
) -> None:
    cluster.fault = lambda moment, made: error if (moment, made) == ("before", call) else None
    with pytest.raises(type(error)):
        await made(cluster).reconcile(KEY)
