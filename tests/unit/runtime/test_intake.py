from typing import Any

import pytest

from finetune_operator.reconcile.keys import Key, PlanKey, ProfileKey
from finetune_operator.runtime.event_handlers import (
    FINISHED_LATER_SECONDS,
    POD_SECONDS,
    USAGE_SECONDS,
    EventHandlers,
)
from finetune_operator.runtime.metrics import OperatorMetrics
from tests.unit.reconcile.fakes import workload
from tests.unit.runtime.objects import job, jobset, key, profile

LOCAL = ProfileKey("local")


class Ears(OperatorMetrics):
    """Records what the event handlers report."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[tuple[Key, float]] = []
        self.handovers: list[float] = []
        """In seconds."""
        self.handed_over = self.handovers.append  # type: ignore[assignment]
        self.now = 0.0
        self.intake = EventHandlers(
            lambda key, after: self.added.append((key, after)), self, clock=lambda: self.now
        )

    def take(self) -> list[Key]:
        keys = [key for key, _ in self.added]
        self.added.clear()
        return keys


@pytest.fixture
def ears() -> Ears:
    return Ears()


def test_a_new_job_is_queued(ears: Ears) -> None:
    ears.intake.job("ADDED", job())
    assert ears.added == [(key(), 0.0)]
    assert ears.intake.live == 1


def test_our_own_status_write_queues_nothing(ears: Ears) -> None:
    ears.intake.job("ADDED", job())
    ears.take()
    ears.intake.job("MODIFIED", job(Valid="True"))
    assert ears.take() == []


@pytest.mark.parametrize("change", [{"generation": 2}, {"labels": {"kueue.x-k8s.io/queue-name": "other"}}])
def test_what_a_person_changed_is_queued(ears: Ears, change: dict[str, object]) -> None:
    ears.intake.job("ADDED", job())
    ears.take()
    ears.intake.job("MODIFIED", job(**change))  # type: ignore[arg-type]
    assert ears.take() == [key()]


@pytest.mark.parametrize("change", [{"labels": {"team": "ml"}}, {"annotations": {"note": "mine"}}])
def test_what_no_reconcile_reads_queues_nothing(ears: Ears, change: dict[str, object]) -> None:
    """A client could change it endlessly and thus cause endless reconciles."""
    ears.intake.job("ADDED", job())
    ears.take()
    ears.intake.job("MODIFIED", job(**change))  # type: ignore[arg-type]
    assert ears.take() == []


def test_of_the_finished_jobs_of_a_listing_only_those_with_work_left_are_queued(ears: Ears) -> None:
    """Ten thousand finished jobs would be read live one by one."""
    done = job("done", generation=2, Finished="True")
    done["status"]["observedGeneration"] = 2
    cleaned = job("cleaned", Finished="True")
    cleaned |= {"spec": {"childTTLSecondsAfterFinished": 60}}
    cleaned["status"]["observedGeneration"] = 1
    for each in (done, cleaned):
        ears.intake.job(None, each)
    ended = jobset("done-prep-1", "done", Completed="True")
    ears.intake.jobset(None, ended)
    assert ears.take() == []
    # Edited since it finished, a leftover that runs, and children to be deleted.
    ears.intake.job(None, {**done, "metadata": {**done["metadata"], "generation": 3}})
    assert ears.take() == [key("done")]
    ears.intake.jobset(None, jobset("done-export-1", "done"))
    assert ears.take() == [key("done")]
    ears.intake.jobset(None, jobset("cleaned-prep-1", "cleaned", Completed="True"))
    assert ears.take() == [key("cleaned")]
    # Its job is listed later.
    ears.intake.jobset(None, jobset("unknown-prep-1", "unknown", Completed="True"))
    assert ears.take() == [key("unknown")]


def test_live_jobs_of_a_listing_go_before_finished_ones(ears: Ears) -> None:
    ears.intake.job(None, job("old", Finished="True"))
    ears.intake.job(None, job("new"))
    assert ears.added == [(key("old"), FINISHED_LATER_SECONDS), (key("new"), 0.0)]
    assert ears.intake.live == 1


def test_a_listing_after_a_gap_queues_also_jobs_that_did_not_change(ears: Ears) -> None:
    ears.intake.job("ADDED", job())
    ears.take()
    ears.intake.job(None, job())
    assert ears.take() == [key()]


@pytest.mark.parametrize("event", ["ADDED", "MODIFIED", "DELETED"])
def test_any_event_of_a_child_queues_its_job(ears: Ears, event: str) -> None:
    ears.intake.jobset(event, jobset())
    # The pods of a slice change in bursts, which are handled together.
    ears.intake.pod(event, jobset("demo-prep-1-cpu-0-0-abcde"))
    assert ears.added == [(key(), 0.0), (key(), POD_SECONDS)]


def versioned(version: str, name: str = "demo-prep-1") -> dict[str, Any]:
    found = jobset(name)
    found["metadata"]["resourceVersion"] = version
    return found


def test_a_creation_by_this_process_queues_nothing_and_every_later_change_does(ears: Ears) -> None:
    ears.intake.job("ADDED", job())
    ears.intake.jobset_created(versioned("7"))
    ears.take()
    ears.intake.jobset("ADDED", versioned("7"))
    assert ears.take() == []
    ears.intake.jobset("MODIFIED", versioned("8"))
    ears.intake.jobset("DELETED", versioned("9"))
    assert ears.take() == [key(), key()]


@pytest.mark.parametrize(
    "other", [versioned("6"), versioned("8"), versioned("7", "demo-conv-1"), jobset("demo-prep-1")]
)
def test_a_creation_by_another_process_is_queued(ears: Ears, other: dict[str, Any]) -> None:
    ears.intake.job("ADDED", job())
    ears.intake.jobset_created(versioned("7"))
    ears.take()
    ears.intake.jobset("ADDED", other)
    assert ears.take() == [key()]


def test_children_of_a_listing_come_with_their_jobs(ears: Ears) -> None:
    ears.intake.job(None, job())
    ears.take()
    ears.intake.jobset(None, jobset())
    ears.intake.pod(None, jobset())
    assert ears.take() == []


def test_a_child_without_our_label_is_nobodys(ears: Ears) -> None:
    stranger = jobset()
    del stranger["metadata"]["labels"]
    ears.intake.jobset("ADDED", stranger)
    assert ears.take() == []


@pytest.mark.parametrize("terminal", ["Completed", "Failed"])
def test_a_handover_is_measured_once_from_the_finished_jobset_to_the_next(ears: Ears, terminal: str) -> None:
    ears.intake.job("ADDED", job())
    ears.intake.jobset("MODIFIED", jobset())
    ears.intake.jobset_created(versioned("7", "demo-conv-1"))
    assert ears.handovers == []
    for ears.now in (10.0, 11.0):
        ears.intake.jobset("MODIFIED", jobset(**{terminal: "True"}))
    ears.now = 12.5
    for _ in range(2):
        ears.intake.jobset_created(versioned("9", "demo-train-1"))
    assert ears.handovers == [2.5]


def test_a_jobset_that_had_ended_before_we_looked_is_no_handover(ears: Ears) -> None:
    ears.intake.job(None, job())
    ears.intake.jobset(None, jobset(Completed="True"))
    ears.intake.jobset("MODIFIED", jobset(Completed="True"))
    ears.intake.jobset_created(versioned("7", "demo-conv-1"))
    assert ears.handovers == []


@pytest.mark.parametrize(
    ("status", "measured"),
    [
        ({"phase": "Running"}, 1),
        ({"phase": "Recovering", "waiting": {"reason": "WaitingForRetry"}}, 0),
        ({"phase": "Suspended"}, 0),
        ({"phase": "Succeeded"}, 0),
    ],
)
def test_a_job_that_waits_on_purpose_between_two_jobsets_is_no_handover(
    ears: Ears, status: dict[str, Any], measured: int
) -> None:
    made = job()
    ears.intake.job("ADDED", made)
    ears.intake.jobset("MODIFIED", jobset(Completed="True"))
    ears.intake.job("MODIFIED", made | {"status": made["status"] | status})
    ears.intake.jobset_created(versioned("7", "demo-conv-1"))
    assert len(ears.handovers) == measured


def test_a_profile_wakes_the_jobs_that_wait_for_one(ears: Ears) -> None:
    ears.intake.job("ADDED", job("waiting", Valid="False"))
    ears.intake.job("ADDED", job("admitted", Valid="True"))
    ears.intake.job("ADDED", job("finished", Valid="False", Finished="True"))
    ears.take()
    ears.intake.profile("ADDED", profile())
    assert ears.take() == [LOCAL, key("waiting")]


@pytest.mark.parametrize(
    "change", [profile(generation=2), profile(annotations={"tpu-finetune.dev/is-default-profile": "true"})]
)
def test_what_a_person_changed_of_a_profile_is_reconciled_at_once(
    ears: Ears, change: dict[str, object]
) -> None:
    ears.intake.profile("ADDED", profile())
    ears.take()
    ears.intake.profile("MODIFIED", change)
    assert ears.added == [(LOCAL, 0.0)]


def test_the_status_that_was_written_to_a_profile_wakes_no_job(ears: Ears) -> None:
    ears.intake.job("ADDED", job("waiting", Valid="False"))
    ears.intake.profile("ADDED", profile())
    ears.take()
    ears.intake.profile("MODIFIED", profile(used_by=3))
    assert ears.take() == []


def test_a_profile_that_is_created_again_is_reconciled_again(ears: Ears) -> None:
    ears.intake.profile("ADDED", profile())
    ears.intake.profile("DELETED", profile())
    ears.take()
    ears.intake.profile("ADDED", profile())
    assert ears.take() == [LOCAL]


def test_profiles_of_a_listing_wait_for_the_jobs_that_use_them(ears: Ears) -> None:
    ears.intake.profile(None, profile())
    assert ears.added == [(LOCAL, USAGE_SECONDS)]


def test_a_profile_is_used_by_the_jobs_that_run_under_it_until_they_finish(ears: Ears) -> None:
    def looked_at() -> bool:
        return (LOCAL, USAGE_SECONDS) in ears.added

    ears.intake.job("ADDED", job())
    assert (ears.intake.used_by("local"), looked_at()) == (0, False)
    for _ in range(2):
        ears.intake.job("MODIFIED", job(profile="local"))
    ears.intake.job("ADDED", job("other", profile="elsewhere"))
    assert (ears.intake.used_by("local"), looked_at()) == (1, True)
    assert ears.added.count((LOCAL, USAGE_SECONDS)) == 1
    ears.added.clear()
    ears.intake.job("MODIFIED", job(profile="local", Finished="True"))
    assert (ears.intake.used_by("local"), looked_at()) == (0, True)


def test_a_job_that_is_gone_uses_no_profile(ears: Ears) -> None:
    for name in ("deleted", "vanished"):
        ears.intake.job("ADDED", job(name, profile="local"))
    ears.added.clear()
    ears.intake.job("DELETED", job("deleted", profile="local"))
    ears.intake.gone([key("vanished")])
    assert ears.intake.used_by("local") == 0
    assert ears.added.count((LOCAL, USAGE_SECONDS)) == 2


def test_a_deleted_job_is_forgotten(ears: Ears) -> None:
    ears.intake.job("ADDED", job())
    ears.intake.job("DELETED", job())
    assert (len(ears.intake.keys()), [*ears.jobs()]) == (0, [])


def test_a_live_job_that_is_deleted_is_observed_once_more_so_that_its_views_are_dropped(ears: Ears) -> None:
    for name, finished in (("live", {}), ("finished", {"Finished": "True"})):
        ears.intake.job("ADDED", job(name, **finished))
    ears.take()
    for name in ("live", "finished"):
        ears.intake.job("DELETED", job(name))
    taken = ears.take()
    assert key("live") in taken
    assert key("finished") not in taken


def test_a_resync_queues_live_jobs_and_forgets_the_vanished(ears: Ears) -> None:
    for name in ("live", "finished", "vanished"):
        ears.intake.job("ADDED", job(name))
    ears.take()
    ears.intake.listed([job("live"), job("finished", Finished="True"), job("unseen")])
    ears.intake.gone([key("vanished")])
    assert sorted(ears.take()) == [key("live"), key("unseen"), key("vanished")]
    assert sorted(ears.intake.keys()) == [key("finished"), key("live"), key("unseen")]
    assert len([*ears.jobs()]) == 3


def test_a_job_that_finishes_while_a_resync_lists_jobs_stays_finished(ears: Ears) -> None:
    """All pages of a listing show the jobs as they were when it began. The last one may arrive a minute later."""
    listed, finished = job(), job(Finished="True")
    listed["metadata"]["resourceVersion"], finished["metadata"]["resourceVersion"] = "5", "9"
    ears.intake.job("MODIFIED", finished)
    ears.intake.listed([listed])
    assert ears.intake.live == 0
    ears.intake.pod("MODIFIED", jobset("demo-prep-1-cpu-0-0-abcde"))
    assert ears.take() == [key(), key()]


def test_a_workload_queues_the_job_of_its_jobset_and_no_other(ears: Ears) -> None:
    ears.intake.workload("MODIFIED", workload("demo-train-1", "u"))
    assert ears.take() == [], "the job is not known yet, and is queued by its own event"
    ears.intake.job("ADDED", job())
    ears.take()
    ears.intake.workload(None, workload("demo-train-1", "u"))
    for name in ("other-train-1", "demo", "demo-train-0", "demo-train"):
        ears.intake.workload("MODIFIED", workload(name, "u"))
    assert ears.take() == []
    ears.intake.workload("MODIFIED", workload("demo-train-1", "u"))
    ears.intake.workload("DELETED", workload("demo-eval-12", "u"))
    assert ears.take() == [key(), key()]


def test_pods_and_workloads_of_a_finished_job_queue_nothing(ears: Ears) -> None:
    ears.intake.job("ADDED", job(Finished="True"))
    ears.take()
    ears.intake.pod("DELETED", jobset("demo-prep-1-cpu-0-0-abcde"))
    ears.intake.workload("DELETED", workload("demo-train-1", "u"))
    assert ears.take() == []
    ears.intake.jobset("DELETED", jobset())
    assert ears.take() == [key()]


def test_after_a_gap_every_live_job_is_reconciled(ears: Ears) -> None:
    """A child that was deleted during the gap is in no listing, and no event reports it."""
    ears.intake.job(None, job("old", Finished="True"))
    ears.intake.job(None, job("new"))
    ears.take()
    ears.intake.missed()
    assert ears.take() == [key("new")]


def created_again(at: str, **status: str) -> dict[str, Any]:
    """Returns another job of the same name, created at second ``at``."""
    made = job(**status)
    made["metadata"] |= {"uid": f"uid-of-{at}", "creationTimestamp": f"2026-11-22T10:00:{at}Z"}
    return made


def test_the_deletion_of_an_earlier_job_does_not_forget_the_one_of_its_name(ears: Ears) -> None:
    old, new = created_again("01", Finished="True"), created_again("02")
    ears.intake.job("ADDED", old)
    ears.intake.job("ADDED", new)
    ears.take()
    ears.intake.job("DELETED", old)
    assert (ears.intake.live, len(ears.intake.keys())) == (1, 1)
    assert ears.take() == [PlanKey("team", "demo", "uid-of-01")]
    ears.intake.job("DELETED", new)
    assert len(ears.intake.keys()) == 0


def test_a_late_event_of_an_earlier_job_changes_nothing(ears: Ears) -> None:
    ears.intake.job("ADDED", created_again("02"))
    ears.take()
    ears.intake.job("MODIFIED", created_again("01", Finished="True"))
    assert ears.take() == []
    assert ears.intake.live == 1


def test_a_job_that_is_created_again_is_known_afresh(ears: Ears) -> None:
    ears.intake.job("ADDED", created_again("01", Finished="True"))
    ears.intake.jobset("MODIFIED", jobset(Completed="True"))
    ears.take()
    ears.intake.job("ADDED", created_again("02"))
    assert ears.take() == [key()]
    ears.intake.jobset("MODIFIED", jobset(Completed="True"))
    ears.intake.jobset_created(versioned("7", "demo-conv-1"))
    assert len(ears.handovers) == 1, "the JobSet of that name belongs to the new job"


def test_deleted_jobsets_of_a_live_job_are_forgotten(ears: Ears) -> None:
    """A tenant may create and delete them endlessly."""
    ears.intake.job("ADDED", job())
    for number in range(3):
        ended = jobset(Completed="True")
        ended["metadata"]["uid"] = f"uid-{number}"
        ears.intake.jobset("MODIFIED", ended)
        ears.intake.jobset("DELETED", ended)
    assert not ears.intake._seen[key()].finished_jobsets


def test_a_page_from_before_a_job_was_created_again_in_the_same_second_changes_nothing(ears: Ears) -> None:
    before, now = job(Finished="True"), job()
    for version, each in (("5", before), ("7", now)):
        each["metadata"] |= {"uid": f"uid-{version}", "resourceVersion": version}
        each["metadata"]["creationTimestamp"] = "2026-11-21T12:00:00Z"
    ears.intake.job("DELETED", before)
    ears.intake.job("ADDED", now)
    ears.intake.listed([before])
    assert ears.intake.live == 1
    ears.take()
    ears.intake.missed()
    assert ears.take() == [key()]


def test_a_deleted_job_is_reported_with_its_last_status() -> None:
    deleted: list[Any] = []
    intake = EventHandlers(lambda _key, _after: None, Ears(), deleted=deleted.append)
    intake.job("ADDED", job())
    intake.job("MODIFIED", job(Valid="True"))
    assert deleted == []
    intake.job("DELETED", job(Valid="True"))
    assert deleted == [job(Valid="True")]


@pytest.mark.parametrize(
    ("ledger", "queued"), [({}, []), ({"pending": 1}, [(key(), FINISHED_LATER_SECONDS)])]
)
def test_a_listed_job_that_has_ended_is_queued_if_the_ledger_lacks_it(
    ears: Ears, ledger: dict[str, Any], queued: list[tuple[Key, float]]
) -> None:
    ended = job(Finished="True")
    ended["status"] |= {"observedGeneration": ended["metadata"].get("generation"), "ledger": ledger}
    ears.intake.job(None, ended)
    assert ears.added == queued


class Usage:
    """Records what budgets are given. A profile's limit is its generation."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.gone_jobs: list[str] = []
        self.limits: dict[str, object] = {}

    def profile(self, name: str, profile: Any) -> bool:
        before = self.limits.pop(name, None)
        if profile is not None:
            self.limits[name] = profile["metadata"].get("generation")
        return before != self.limits.get(name)

    def job(self, found: Any) -> None:
        self.jobs.append(found["metadata"]["name"])

    def gone(self, _namespace: str, uid: str) -> None:
        self.gone_jobs.append(uid)


def under(name: str, *, waiting: str | None = None, finished: bool = False) -> Any:
    """A job under the profile ``name``."""
    found = job(Valid="True", **({"Finished": "True"} if finished else {}))
    found["status"]["resolved"] = {"profile": {"name": name}}
    if waiting:
        found["status"]["waiting"] = {"reason": waiting}
    return found


def test_a_changed_limit_queues_the_jobs_of_its_profile() -> None:
    ears, usage = Ears(), Usage()
    ears.intake = EventHandlers(lambda key, after: ears.added.append((key, after)), ears, budgets=usage)
    ears.intake.job("ADDED", under("local"))
    ears.take()

    def of(name: str, generation: int) -> Any:
        return {"metadata": {"name": name, "uid": name, "generation": generation}}

    ears.intake.profile("MODIFIED", of("other", 1))
    assert key() not in ears.take()
    ears.intake.profile("MODIFIED", of("local", 1))
    assert key() in ears.take()
    ears.intake.profile("MODIFIED", of("local", 1))
    assert key() not in ears.take()
    # A listing after a gap in the watch.
    ears.intake.profile(None, of("local", 2))
    assert key() in ears.take()
    ears.intake.profile("DELETED", of("local", 2))
    assert key() in ears.take()


@pytest.mark.parametrize(
    ("found", "queued"),
    [
        (under("local", waiting="WaitingForBudget"), True),
        (under("local", waiting="WaitingForQuota"), False),
        (under("local"), False),
    ],
)
def test_a_job_that_waits_for_its_budget_is_queued_when_the_usage_is_known(
    ears: Ears, found: Any, queued: bool
) -> None:
    ears.intake.job("ADDED", found)
    ears.take()
    ears.intake.usage_known("another")
    assert ears.take() == []
    ears.intake.usage_known(found["metadata"]["namespace"])
    assert ears.take() == ([key()] if queued else [])


def test_budgets_receive_each_job_and_its_deletion() -> None:
    ears, usage = Ears(), Usage()
    order: list[str] = []
    ears.intake = EventHandlers(
        lambda _key, _after: None, ears, deleted=lambda _job: order.append("recorded"), budgets=usage
    )
    ears.intake.job("ADDED", job())
    ears.intake.job("DELETED", job())
    assert usage.jobs == [job()["metadata"]["name"]]
    assert (order, usage.gone_jobs) == (["recorded"], [job()["metadata"]["uid"]])


class Versions:
    """Records what the handlers report of versions of jobs."""

    def __init__(self) -> None:
        self.reported: list[str] = []

    def job(self, job: Any) -> None:
        self.reported.append(job["metadata"]["name"])

    def listing(self) -> None:
        self.reported.append("listing")

    def listed(self, left_out: Any) -> None:
        self.reported.append(f"listed without {sorted(left_out)}")


def test_every_version_of_a_job_and_each_complete_listing_are_reported() -> None:
    versions = Versions()
    handlers = EventHandlers(lambda _key, _after: None, Ears(), notifications=versions)
    handlers.job(None, job("old", Finished="True"))
    handlers.job("ADDED", job("new"))
    handlers.listing()
    handlers.listed([job("new", generation=2), job("missed", Finished="True")])
    handlers.gone([])
    handlers.gone([], left_out={"lost"})
    listed = ["listed without []", "listed without ['lost']"]
    assert versions.reported == ["old", "new", "listing", "new", "missed", *listed]


def test_chips_of_a_lost_namespace_are_those_of_the_last_status_that_this_process_has_written(
    ears: Ears,
) -> None:
    """The watch may end before it shows that the job runs."""
    running = job(profile="local", Running="True")
    running["metadata"]["resourceVersion"] = "2"
    running["status"] |= {"phase": "Running", "stage": "Train"}
    running["status"]["resolved"]["resources"] = {"chips": 4}
    ears.intake.job("ADDED", job())
    assert ears.chips("team") == 0
    ears.intake.namespace_changed("team", [running])
    assert ears.chips("team") == 4
    running["metadata"]["resourceVersion"] = "1"
    del running["status"]["phase"]
    ears.intake.namespace_changed("team", [running])
    assert ears.chips("team") == 4
