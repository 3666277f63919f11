"""If a decision requests details, the operator reads them and decides again; details that are denied are omitted."""

from typing import Any

from finetune_contract import HostProgress
from finetune_operator.api import FineTuneJobStatus
from finetune_operator.cluster.port import CONFIG_MAPS, EVENTS, JOBS, Rejected
from finetune_operator.lifecycle.decision import Decision, DetailRequest, ObjectReference, Wait
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.reconcile.apply import Applier
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.observe import Observer
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.reconciler import Reconciler
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.watch_cache import WatchCache
from tests.unit.reconcile.fakes import FOLDERS, NOW, OWN, FakeCluster, FakeStore, job, plan

ALL = DetailRequest(hosts=2, events=ObjectReference(kind="Pod", name="waiting"))


def _status(generation: int) -> FineTuneJobStatus:
    return FineTuneJobStatus(observed_generation=generation)


class Asking:
    """A stub of ``decide`` whose first decision requests details."""

    def __init__(self, details: DetailRequest | None) -> None:
        self.details = details
        self.seen: list[Observation] = []

    def __call__(self, observation: Observation) -> Decision:
        self.seen.append(observation)
        return Decision(
            action=Wait(),
            status=_status(len(self.seen)),
            details=self.details if len(self.seen) == 1 else None,
        )


async def reconcile(asking: Asking, cluster: FakeCluster, store: FakeStore) -> None:
    cluster.put(JOBS, job())
    cluster.put(CONFIG_MAPS, plan())
    reconciler = Reconciler(
        Observer(
            cluster,
            Plans(cluster, OWN),
            RunFolderReader(store),
            WatchCache(),
            utc_now=lambda: NOW,
            live_jobs=lambda: 1,
        ),
        asking,
        Applier(cluster, Plans(cluster, OWN), store, WatchCache()),
        utc_now=lambda: NOW,
    )
    await reconciler.reconcile(JobKey("team", "demo"), retry_in=1)


def event(pod: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": f"{pod}.1"},
        "involvedObject": {"kind": "Pod", "name": pod},
        "reason": "TriggeredScaleUp",
        "message": f"pod {pod} triggered scale-up",
    }


def world() -> tuple[FakeCluster, FakeStore]:
    cluster, store = FakeCluster(), FakeStore()
    for pod in ("waiting", "another"):
        cluster.put(EVENTS, event(pod))
    for host in range(2):
        word = HostProgress(attempt=1, host=host, step=host, updated=NOW)
        store.files[FOLDERS.run.host(host)] = word.to_json().encode()
    return cluster, store


async def test_what_is_asked_for_is_seen_and_the_second_decision_counts() -> None:
    cluster, store = world()
    asking = Asking(ALL)
    await reconcile(asking, cluster, store)
    first, second = asking.seen
    assert (first.hosts, first.events) == (None, None)
    assert second.hosts is not None
    assert {host: word.step for host, word in second.hosts.items()} == {0: 0, 1: 1}
    assert [each.message for each in second.events or ()] == ["pod waiting triggered scale-up"]
    assert cluster.of(JOBS)[0]["status"] == _status(2).to_document()


async def test_a_decision_that_asks_for_nothing_is_the_only_one() -> None:
    cluster, store = world()
    asking = Asking(None)
    await reconcile(asking, cluster, store)
    assert len(asking.seen) == 1
    assert "list events" not in cluster.calls


async def test_without_the_right_to_see_events_there_are_none() -> None:
    cluster, store = world()
    cluster.fault = lambda _, call: Rejected("forbidden", status=403) if call == "list events" else None
    asking = Asking(ALL)
    await reconcile(asking, cluster, store)
    assert asking.seen[1].events == ()


async def test_what_a_host_says_in_another_version_is_left_out() -> None:
    cluster, store = world()
    store.files[FOLDERS.run.host(1)] = b'{"version": 3}'
    store.files[f"{FOLDERS.run.hosts}/notes.txt"] = b"of somebody else"
    asking = Asking(ALL)
    await reconcile(asking, cluster, store)
    assert asking.seen[1].hosts is not None
    assert list(asking.seen[1].hosts) == [0]
