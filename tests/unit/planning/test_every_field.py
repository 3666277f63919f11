"""Nothing is accepted and ignored: every field of a job changes its plan or controls its life."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample

from finetune_contract import PREFERENCE_TYPES
from finetune_operator.api import MethodType
from finetune_operator.api.method import member
from finetune_operator.planning import Plan, Refused, admit
from tests.fuzz.specs import JOB, JOB_LEAVES, PROFILE, put, values

type Document = dict[str, Any]

PAIRS = {"format": "Preference", "uri": "gs://team-a/pairs.jsonl"}
#: Jobs in which a field can have an effect, if it has none in the smallest job.
CONTEXTS: dict[str, Document] = {
    **{
        f"method.{member(MethodType(kind))}": {"method": {"type": kind}, "datasets": {"train": [PAIRS]}}
        for kind in PREFERENCE_TYPES
    },
    "method.lora": {"method": {"type": "SFT", "lora": {}}},
    "datasets.splitFromTrain": {"datasets": {"train": [{"uri": "gs://team-a/chats.jsonl"}]}},
    "checkpointing.bestBy": {"evaluation": {"everySteps": 100}},
    "checkpointing.keep.best": {"evaluation": {"everySteps": 100}},
    "export.checkpoint": {"evaluation": {"everySteps": 100}},
    "export.content": {"method": {"type": "SFT", "lora": {}}},
    "budget.onExhausted": {"budget": {"maxChipHours": 10}},
    "preflight.dataset": {"hyperparameters": {"steps": 10}},
    "resources.chipsPerHost": {"resources": {"tpu": "v6e-8"}},
    "resources.slices": {"resources": {"tpu": "v6e-16"}},
    "resources.capacity": {"resources": {"tpu": "v6e-8"}},
}
#: Members that a union requires together with the field.
BESIDE: dict[str, Document] = {
    "model.huggingFace.revision": {"model": {"huggingFace": {"repo": "acme/model"}}},
    "datasets.splitFromTrain.seed": {"datasets": {"splitFromTrain": {"fraction": 0.1}}},
    "resources.accelerator": {"resources": {"topology": "2x2"}},
    "resources.topology": {"resources": {"accelerator": "tpu-v6e-slice"}},
    "profiling.steps": {"profiling": {"startStep": 3}},
    "huggingFaceTokenSecretRef.key": {"huggingFaceTokenSecretRef": {"name": "token"}},
    "model.tokenizer.huggingFace.revision": {"model": {"tokenizer": {"huggingFace": {"repo": "acme/model"}}}},
    "checkpointing.bestBy.mode": {"checkpointing": {"bestBy": {"metric": "loss"}}},
    "model.orbax.uri": {
        "model": {"maxtextModel": "qwen3-0.6b", "tokenizer": {"uri": "gs://team-a/tokenizer"}}
    },
}
#: Values that must agree with the rest of the job, which a schema cannot express.
AGREEING: dict[str, Any] = {
    "resources.tpu": "v6e-16",
    "resources.accelerator": "tpu-v6e-slice",
    "resources.topology": "2x2",
    "engineOverrides": {"remat_policy": "full"},
    "datasets.chatTemplate.arguments": {"enable_thinking": "false"},
    "evaluation.gates": [{"metric": "loss", "op": "LessOrEqual", "value": 1.5}],
    "export.destinations": [{"uri": "gs://team-a/exports"}],
    "checkpointing.bestBy.metric": "perplexity",
    "checkpointing.bestBy.mode": "Max",
    "model.orbax.uri": "gs://team-a/0/items",
    "resources.capacity": ["OnDemand"],
    "resources.slices": 2,
    "resources.chipsPerHost": 8,
}
#: Fields that control the job's life, or select what admission reads before planning.
STEERING = {
    "suspend",
    "cancel",
    "retry.generation",
    "retry.fromStage",
    "profileRef.name",
    "model.fromJob.name",
    "model.fromJob.checkpoint",
    "model.fromJob.step",
    "datasets.chatTemplate.configMapRef.name",
    "datasets.chatTemplate.configMapRef.key",
}


def plan_of(spec: Document) -> Plan | None:
    document = {
        **JOB,
        "metadata": {**JOB["metadata"], "uid": "0b5e3a52-8d0e-4c39-a7d6-1f1f0c1d2e3f"},
        "spec": spec,
    }
    try:
        return replace(admit(document, [PROFILE]).plan, digest="", spec_hash="", spec_digests={})
    except Refused:
        return None


def laid_over(base: Document, *overlays: Document) -> Document:
    made = deepcopy(base)
    for overlay in overlays:
        for section, members in overlay.items():
            made[section] = (
                {**made.get(section, {}), **deepcopy(members)} if isinstance(members, dict) else members
            )
    return made


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        pytest.param(path, schema, id=".".join(path))
        for path, schema in JOB_LEAVES
        if ".".join(path) not in STEERING
    ],
)
def test_every_field_of_a_job_changes_the_plan(path: tuple[str, ...], schema: Document) -> None:
    name = ".".join(path)
    context = next((each for prefix, each in CONTEXTS.items() if name.startswith(prefix)), {})
    base = laid_over(JOB["spec"], context)
    if name.startswith("datasets.splitFromTrain"):
        base["datasets"].pop("validation", None)
    if name.startswith(("model.", "resources.")) and path[1] in (
        "huggingFace",
        "orbax",
        "accelerator",
        "topology",
    ):
        base[path[0]] = {}
    without = plan_of(base)

    def differs(value: Any) -> bool:
        spec = laid_over(base, BESIDE.get(name, {}))
        put(spec, path, value)
        planned = plan_of(spec)
        return planned is not None and planned != without

    if name in AGREEING:
        assert differs(AGREEING[name]), plan_of(base)
        return
    try:
        find(
            values(path, schema),
            differs,
            settings=settings(
                max_examples=200,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    except NoSuchExample:
        pytest.fail(f"spec.{name} was set to 200 values, and the plan stayed the same or there was none")
