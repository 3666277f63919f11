"""Plans are stored in the operator's namespace, and deleted only once their job no longer exists."""

import pytest

from finetune_operator.cluster.port import CONFIG_MAPS, JOBS, Conflict
from finetune_operator.reconcile.keys import PlanKey
from finetune_operator.reconcile.plans import Plans
from tests.unit.reconcile.fakes import OWN, FakeCluster, job, plan

KEY = PlanKey("team", "demo", "uid-of-demo")


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def test_a_plan_is_created_in_the_operators_namespace(cluster: FakeCluster) -> None:
    made = plan()
    del made["metadata"]["namespace"]
    await Plans(cluster, OWN).create(made)
    (stored,) = cluster.of(CONFIG_MAPS)
    assert stored["metadata"]["namespace"] == OWN
    assert await Plans(cluster, OWN).find("uid-of-demo") == stored


async def test_a_plan_is_created_once(cluster: FakeCluster) -> None:
    cluster.put(CONFIG_MAPS, plan())
    with pytest.raises(Conflict, match="admitted in the meantime"):
        await Plans(cluster, OWN).create(plan())


async def test_the_plan_of_a_job_that_is_gone_is_deleted(cluster: FakeCluster) -> None:
    cluster.put(CONFIG_MAPS, plan())
    await Plans(cluster, OWN).delete_orphan(KEY)
    assert cluster.of(CONFIG_MAPS) == []


async def test_the_plan_of_a_job_that_is_there_is_kept_whatever_an_event_said(cluster: FakeCluster) -> None:
    cluster.put(CONFIG_MAPS, plan())
    cluster.put(JOBS, job())
    await Plans(cluster, OWN).delete_orphan(KEY)
    assert len(cluster.of(CONFIG_MAPS)) == 1


async def test_a_job_created_again_under_the_name_does_not_keep_the_earlier_ones_plan(
    cluster: FakeCluster,
) -> None:
    cluster.put(CONFIG_MAPS, plan())
    again = job()
    again["metadata"]["uid"] = "uid-of-its-successor"
    cluster.put(JOBS, again)
    await Plans(cluster, OWN).delete_orphan(KEY)
    assert cluster.of(CONFIG_MAPS) == []


async def test_a_plan_that_is_gone_already_is_fine(cluster: FakeCluster) -> None:
    await Plans(cluster, OWN).delete_orphan(KEY)
    assert cluster.writes() == []


async def test_plans_are_listed_page_by_page_without_their_data(cluster: FakeCluster) -> None:
    for number in range(50):
        made = plan()
        made["metadata"] |= {"name": f"finetune-plan-{number}"}
        made["metadata"]["labels"] = {**made["metadata"]["labels"], "tpu-finetune.dev/job-uid": str(number)}
        cluster.put(CONFIG_MAPS, made)
    assert len([key async for key in Plans(cluster, OWN).stored(())]) == 50
    assert cluster.calls.count("page configmaps") == 50


async def test_the_plan_of_a_deleted_job_is_not_kept_in_memory(cluster: FakeCluster) -> None:
    cluster.put(CONFIG_MAPS, plan())
    plans = Plans(cluster, OWN)
    await plans.delete_orphan(KEY)
    assert plans.cached(KEY.uid) is None


async def test_the_plan_of_a_deleted_job_is_not_read_again_if_it_is_known(cluster: FakeCluster) -> None:
    plans = Plans(cluster, OWN)
    await plans.create(plan())
    assert await plans.delete_orphan(KEY)
    assert cluster.calls == ["create configmaps", "get finetunejobs", "delete configmaps"]


async def test_a_plan_that_was_replaced_is_deleted_at_the_second_attempt(cluster: FakeCluster) -> None:
    plans = Plans(cluster, OWN)
    await plans.create(plan())
    cluster.put(CONFIG_MAPS, plan())
    for remaining in (1, 0):
        await plans.delete_orphan(KEY)
        assert len(cluster.of(CONFIG_MAPS)) == remaining
