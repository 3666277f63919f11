"""The plan of an admission is the one that follows from what is stored."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune_operator.planning import Refused, admit, read_stored_plan, render_stored_plan, replan
from tests.fuzz import specs
from tests.unit.lifecycle.world import UID, job, profile
from tests.unit.planning.test_choice import ORDERS

type Object = dict[str, Any]

QUEUE = {"kueue.x-k8s.io/queue-name": "research"}
FLAVORS = [flavors for flavors, _, _ in ORDERS.values()]
PROFILES: Object = {
    "defaults": [
        {"hyperparameters": {"globalBatchSize": 16}},
        {"hyperparameters": {"perDeviceBatchSize": 2}},
        {"resources": {"tpu": "v6e-8"}, "checkpointing": {"everySteps": 7}},
    ],
    "constraints": [
        {"limits": [{"path": "hyperparameters.globalBatchSize", "max": 8}]},
        {"limits": [{"path": "resources.parallelism.fsdp", "max": 8}], "maxChipHours": 100},
    ],
    "pod": [{"jobLabels": ["team"], "labels": {"env": "prod"}}],
    "queue": [{"localQueue": "team-a"}, {"allowJobLabels": True}],
    "pathways": [{"cpuNodeSelector": {"pool": "cpu"}}],
}
JOBS: Object = {
    "resources": [
        {},
        *(spec["resources"] for _, spec, _ in ORDERS.values() if "resources" in spec),
        {"tpu": "v6e-8"},
        {"tpu": "v6e-4", "parallelism": {"fsdp": 2, "tensor": 2}},
        {"tpu": "v6e-16", "controller": "Pathways"},
    ],
    "hyperparameters": [
        {"steps": 10, "globalBatchSize": 8},
        {"steps": 10, "globalBatchSize": 12.0},
        {"epochs": 1.5, "perDeviceBatchSize": 4, "learningRate": 1},
        {"steps": 10, "gradientAccumulationSteps": 3},
    ],
    "method": [{"type": "SFT", "lora": {"rank": 8}}],
    "budget": [{"maxCost": 100.0}],
    "preflight": [{"memory": "Off"}, {"memory": "Analytic"}],
    "recovery": [{"maxPreemptions": 7}],
    "suspend": [True],
    "planOnly": [True],
}


def some(sections: Object) -> st.SearchStrategy[Object]:
    """Draws some of the sections, each with one of its values."""
    return st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(values) for name, values in sections.items()}
    )


def check(wanted: Object, offered: Object) -> bool:
    """Checks the plan of an admission; returns whether there is one."""
    try:
        admission = admit(wanted, [offered])
    except Refused:
        return False
    stored = read_stored_plan(render_stored_plan(admission.stored))
    assert stored == admission.stored
    assert replan(wanted, stored) == admission.plan
    return True


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(spec=some(JOBS), offer=some(PROFILES), flavors=st.sampled_from(FLAVORS), labels=st.booleans())
def test_the_admitted_plan_is_the_one_that_is_made_from_the_stored_plan(
    spec: Object, offer: Object, flavors: list[Object], labels: bool
) -> None:
    wanted = job(**spec)
    if labels:
        wanted["metadata"]["labels"] = {"team": "nlp", **QUEUE}
    check(wanted, profile(flavors=flavors, currency="USD", **offer))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(wanted=specs.jobs(), offered=specs.profiles())
def test_the_same_holds_for_any_fields(wanted: Object, offered: Object) -> None:
    metadata = (
        {**wanted["metadata"], "uid": UID} if isinstance(wanted.get("metadata"), dict) else {"uid": UID}
    )
    check({**wanted, "metadata": metadata}, offered)


def test_most_of_these_jobs_are_admitted() -> None:
    made = [
        check(job(**{name: value}), profile(flavors=flavors, currency="USD"))
        for name, values in JOBS.items()
        for value in values
        for flavors in FLAVORS
    ]
    assert sum(made) > len(made) / 2
