"""Jobs that must be refused, with the place that the error has to name; by the API server and offline alike."""

from typing import Any

import pytest

from tests.unit.api.documents import JOB, Document, job

TRAIN = {"uri": "gs://team-a/chats.jsonl"}


def _train(**source: Any) -> Document:
    return job(datasets={"train": [TRAIN | source]})


def _named(name: str) -> Document:
    return {**JOB, "metadata": {"name": name}}


_CASES: list[tuple[str, Document, str]] = [
    ("unknown field", job(extra=1), "spec.extra"),
    ("misspelt field", job(hyperparameters={"learningrate": "2e-5"}), "spec.hyperparameters.learningrate"),
    ("misspelt field in a list", _train(wieght="1.0"), "spec.datasets.train[0].wieght"),
    ("snake case", job(plan_only=True), "spec.plan_only"),
    ("text for a number", job(hyperparameters={"epochs": "two"}), "spec.hyperparameters.epochs"),
    (
        "a number in quotes",
        job(hyperparameters={"learningRate": "0.1"}),
        "spec.hyperparameters.learningRate",
    ),
    ("text for a boolean", job(suspend="yes"), "spec.suspend"),
    ("object for a list", job(datasets={"train": TRAIN}), "spec.datasets.train"),
    ("zero epochs", job(hyperparameters={"epochs": 0}), "spec.hyperparameters.epochs"),
    ("negative seed", job(hyperparameters={"seed": -1}), "spec.hyperparameters.seed"),
    ("no number", job(hyperparameters={"learningRate": "fast"}), "spec.hyperparameters.learningRate"),
    (
        "learning rate of zero",
        job(hyperparameters={"learningRate": 0}),
        "spec.hyperparameters.learningRate",
    ),
    ("warm-up above one", job(hyperparameters={"warmupRatio": 3}), "spec.hyperparameters.warmupRatio"),
    ("unknown method", job(method={"type": "GRPO"}), "spec.method.type"),
    ("options of another method", job(method={"type": "SFT", "dpo": {}}), "spec.method"),
    ("no model", job(model=None), "spec.model"),
    ("no model source", job(model={"maxtextModel": "gemma2-2b"}), "spec.model"),
    ("two model sources", job(model={"uri": "gs://ab/c", "huggingFace": {"repo": "a/b"}}), "spec.model"),
    ("orbax alone", job(model={"orbax": {"uri": "gs://ab/c"}}), "spec.model"),
    ("a step without Step", job(model={"fromJob": {"name": "a", "step": 3}}), "spec.model.fromJob"),
    ("no training data", job(datasets={"train": []}), "spec.datasets.train"),
    ("no dataset source", job(datasets={"train": [{}]}), "spec.datasets.train[0]"),
    ("two dataset sources", _train(huggingFace={"repo": "a/b"}), "spec.datasets.train[0]"),
    (
        "a weight for one source of two",
        job(datasets={"train": [TRAIN, {**TRAIN, "weight": 1}]}),
        "spec.datasets",
    ),
    ("unknown role", _train(roleMap={"bot": "robot"}), "spec.datasets.train[0].roleMap.bot"),
    (
        "two sources of validation rows",
        job(datasets={"train": [TRAIN], "validation": [TRAIN], "splitFromTrain": {"fraction": 0.1}}),
        "spec.datasets",
    ),
    ("epochs and steps", job(hyperparameters={"epochs": 1, "steps": 10}), "spec.hyperparameters"),
    (
        "two batch sizes",
        job(hyperparameters={"globalBatchSize": 8, "perDeviceBatchSize": 1}),
        "spec.hyperparameters",
    ),
    ("topology alone", job(resources={"topology": "2x2"}), "spec.resources"),
    (
        "a TPU named twice",
        job(resources={"tpu": "v6e-4", "accelerator": "tpu-v6e-slice", "topology": "2x2"}),
        "spec.resources",
    ),
    ("capacity repeated", job(resources={"capacity": ["Spot", "Spot"]}), "spec.resources.capacity"),
    (
        "a gate without threshold",
        job(evaluation={"gates": [{"metric": "loss", "op": "LessOrEqual"}]}),
        "spec.evaluation.gates[0]",
    ),
    (
        "a gate on a baseline that is off",
        job(
            evaluation={
                "baseline": False,
                "gates": [{"metric": "loss", "op": "LessOrEqual", "deltaFromBaseline": -0.1}],
            }
        ),
        "spec.evaluation",
    ),
    ("no destination", job(export={"destinations": [{}]}), "spec.export.destinations[0]"),
    (
        "not an address",
        job(export={"destinations": [{"uri": "s3://a/b"}]}),
        "spec.export.destinations[0].uri",
    ),
    (
        "a way out of a folder",
        job(resumeFrom={"runFolder": "gs://art/team-a/../team-b/job-1a2b3c4d"}),
        "spec.resumeFrom.runFolder",
    ),
    ("an encoded way out", job(model={"uri": "gs://art/team-a/%2e%2E/x"}), "spec.model.uri"),
    (
        "an empty name in a path",
        job(datasets={"train": [{"uri": "gs://art//a.jsonl"}]}),
        "spec.datasets.train[0].uri",
    ),
    ("a glob of models", job(model={"uri": "gs://art/*"}), "spec.model.uri"),
    ("a bucket of 64 characters", job(model={"uri": f"gs://{'a' * 64}/m"}), "spec.model.uri"),
    (
        "a bucket of 223 characters with dots",
        job(model={"uri": f"gs://{'a.' * 111}a/m"}),
        "spec.model.uri",
    ),
    (
        "a separator of other systems",
        job(export={"destinations": [{"uri": "gs://art/a\\..\\b"}]}),
        "spec.export.destinations[0].uri",
    ),
    (
        "a line's end in a path",
        job(evaluation={"benchmarks": [{"name": "b", "uri": "gs://art/a\n"}]}),
        "spec.evaluation.benchmarks[0].uri",
    ),
    ("an override without name", job(engineOverrides={"": "full"}), "spec.engineOverrides"),
    ("name of 29 characters", _named("a" * 29), "metadata.name"),
    ("name that begins with a digit", _named("1st-try"), "metadata.name"),
    ("name with a dot", _named("a.b"), "metadata.name"),
    ("name with capitals", _named("Support-Bot"), "metadata.name"),
]

BAD_JOBS = pytest.mark.parametrize(
    ("document", "path"), [pytest.param(document, path, id=name) for name, document, path in _CASES]
)
