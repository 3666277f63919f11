"""Generated jobs and profiles through the API server and the planner: each is accepted or refused, with no crash."""

import contextlib
import re
from copy import deepcopy

import pytest
from hypothesis import HealthCheck, given, settings

from finetune_operator.cluster.port import ClusterError
from finetune_operator.planning import Refused, admit, check_profile_object
from finetune_operator.rendering import CpuPoolTooSmall
from tests.doubles.local_cluster import LocalCluster
from tests.fuzz.specs import EXAMPLES, JOB, PROFILE, Document, jobs, profiles
from tests.unit.rendering.golden_jobsets import plan_offline

JOBS = "/apis/tpu-finetune.dev/v1alpha1/namespaces/{}/finetunejobs?dryRun=All&fieldValidation=Strict"
PROFILES = "/apis/tpu-finetune.dev/v1alpha1/finetuneprofiles?dryRun=All&fieldValidation=Strict"
#: A refusal names the place: a field of the job or of the profile, a label, or the profile itself.
PLACE = re.compile(
    r"spec\.|metadata\.|profile \"|spec:|unknown field|FineTuneProfile|models\.allow|constraints|cpuPool"
)

fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
)


class Seen:
    """The number of examples by outcome."""

    def __init__(self) -> None:
        self.refused_by_server = self.refused_by_planner = self.planned = 0

    @property
    def reached_the_planner(self) -> float:
        total = self.refused_by_server + self.refused_by_planner + self.planned
        return (self.refused_by_planner + self.planned) / total

    def __str__(self) -> str:
        return (
            f"{self.refused_by_server} refused by the API server, {self.refused_by_planner} by the planner, "
            f"{self.planned} planned"
        )


def accepted(cluster: LocalCluster, path: str, document: Document) -> bool:
    """Whether the API server accepts the document. Asserts that a refusal is for invalid content and has the place."""
    refusal = None
    try:
        cluster.create(path, document)
    except ClusterError as error:
        refusal = error
    assert refusal is None or (refusal.status in (400, 422) and PLACE.search(str(refusal))), str(refusal)
    return refusal is None


def plans(job: Document, profile: Document, seen: Seen) -> None:
    """Asserts that the planner plans the job, or refuses it and names the place, and raises no other error."""
    named = deepcopy(job)
    named["metadata"]["uid"] = "0b5e3a52-8d0e-4c39-a7d6-1f1f0c1d2e3f"
    refusal = ""
    try:
        admit(named, [profile])
        plan_offline(job, profile)
    except (Refused, CpuPoolTooSmall) as error:
        refusal = str(error)
        seen.refused_by_planner += 1
    else:
        seen.planned += 1
    assert not refusal or (PLACE.search(refusal) and len(refusal) < 20_000), refusal


@pytest.mark.timeout(0)
def test_a_generated_job_is_planned_or_refused_with_the_place(cluster: LocalCluster, namespace: str) -> None:
    seen = Seen()

    @fuzzed
    @given(jobs())
    def run(document: Document) -> None:
        placed = {**document, "metadata": {**document["metadata"], "namespace": namespace}}
        if not accepted(cluster, JOBS.format(namespace), placed):
            seen.refused_by_server += 1
            return
        plans(document, PROFILE, seen)

    run()
    print(f"jobs: {seen}")
    assert seen.reached_the_planner >= 0.3, str(seen)
    assert seen.planned


@pytest.mark.timeout(0)
def test_a_generated_profile_is_judged_and_plans_or_refuses_with_the_place(cluster: LocalCluster) -> None:
    seen = Seen()

    @fuzzed
    @given(profiles())
    def run(document: Document) -> None:
        if not accepted(cluster, PROFILES, document):
            seen.refused_by_server += 1
            return
        with contextlib.suppress(Refused):
            check_profile_object(document)
        plans(JOB, document, seen)

    run()
    print(f"profiles: {seen}")
    assert seen.reached_the_planner >= 0.3, str(seen)
    assert seen.planned
