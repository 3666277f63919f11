"""Records of runs for tests of the comparison."""

import hashlib
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from finetune_contract import (
    DatasetScores,
    EvaluatedRow,
    EvaluateOutcome,
    EvaluationResult,
    PreflightOutcome,
    Progress,
    RowMeasures,
    Sample,
    StageRequest,
)
from finetune_operator.results.records import RunRecords
from tests.stage_outcomes import sizes

type Kind = Literal["Validation", "Dataset", "Benchmark"]

FOLDER = "gs://artifacts/team-a/support-bot-0b5e3a52"


def digest(text: object) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def row(
    content: object,
    loss: float | None = None,
    *,
    tokens: int = 10,
    base: float | None = None,
    kind: Kind = "Validation",
    name: str = "validation-0",
    scores: dict[str, float] | None = None,
    base_scores: dict[str, float] | None = None,
    asked: object = None,
) -> EvaluatedRow:
    """``loss`` and ``base`` are the tuned and the base model's sums over ``tokens``; ``asked`` is what no template has
    rendered."""
    measured = base is not None or base_scores is not None
    count = tokens if loss is not None else 0
    return EvaluatedRow(
        kind=kind,
        name=name,
        digest=digest(content),
        content=None if asked is None else digest(asked),
        baseline=RowMeasures(loss=base, tokens=count, scores=base_scores or {}) if measured else None,
        tuned=RowMeasures(loss=loss, tokens=count, scores=scores or {}),
    )


def rows(number: int, *, seed: int, gain: float = 0.0, right: float = 0.5) -> list[EvaluatedRow]:
    """Validation rows with a loss, then as many of the dataset faq with scores.

    The rows depend on ``number`` alone, the measurements of the tuned model also on the others.

    Args:
        number: of rows in each set.
        seed: of what differs between two trainings.
        gain: by which the loss per token is lower.
        right: share of exact matches.
    """
    hard, own = Random(0), Random(seed)
    found = []
    for content in range(number):
        tokens, level = hard.randint(5, 40), hard.uniform(1.0, 3.0)
        loss = tokens * (level - gain + own.gauss(0, 0.05))
        found.append(row(content, loss, tokens=tokens, base=tokens * (level + 0.5)))
    for content in range(number):
        match = float(own.random() < right)
        found.append(
            row(
                f"faq {content}",
                kind="Dataset",
                name="faq",
                scores={"exact_match": match},
                base_scores={"exact_match": float(hard.random() < 0.2)},
            )
        )
    return found


def results(measured: Sequence[EvaluatedRow], **fields: Any) -> EvaluateOutcome:
    """The record of an evaluation with these validation rows and rows of faq."""
    validation = [each.tuned for each in measured if each.kind == "Validation"]
    faq = [each.tuned.scores["exact_match"] for each in measured if each.kind == "Dataset"]
    tokens = sum(each.tokens for each in validation)
    loss = sum(each.loss or 0.0 for each in validation) / max(1, tokens)
    return EvaluateOutcome(
        step=600,
        dataset_hash=digest([each.digest for each in measured]),
        tuned=EvaluationResult(loss=loss, tokens=tokens, rows=len(validation)),
        datasets=[DatasetScores(name="faq", rows=len(faq), tuned={"exact_match": sum(faq) / len(faq)})]
        if faq
        else [],
        samples_uri="gs://r/samples",
        rows_uri="gs://r/rows",
        **fields,
    )


def request(**changes: Any) -> StageRequest:
    """The request of an Evaluate stage. ``changes`` by dotted path with ``__``: ``hyperparameters__seed=1``."""
    document: dict[str, Any] = {
        "job": {"namespace": "team-a", "name": "support-bot", "uid": "0b5e3a52"},
        "stage": "Evaluate",
        "attempt": 1,
        "run_folder": FOLDER,
        "cache": "gs://artifacts/cache",
        "model": {"hugging_face": {"repo": "Qwen/Qwen3-0.6B", "revision": "c1899de289a04d12100db370d81485cdf75e47ca"}},
        "use_cache": "Use",
        "data": {
            "train": [{"path": "spec.datasets.train[0]", "name": "chats", "uri": "gs://data/chats.jsonl"}],
            "max_seq_length": 1024,
            "shuffle": True,
            "packing": True,
            "check": "Full",
        },
        "method": {"type": "SFT", "train_on_prompt": False, "lora": {"rank": 16, "alpha": 32.0}},
        "hyperparameters": {
            "steps": 600, "global_batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 2e-4,
            "schedule": "Cosine", "weight_decay": 0.0, "max_grad_norm": 1.0, "optimizer": "AdamW", "seed": 42,
            "compute_precision": "BF16", "weight_precision": "BF16",
        },
        "mesh": {"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        "checkpointing": {"every_steps": 100, "keep_last": 2},
        "evaluation": {
            "baseline": True, "max_new_tokens": 128, "temperature": 0.0, "top_k": 0,
            "datasets": [
                {
                    "source": {"path": "spec.evaluation.datasets[0]", "name": "faq", "uri": "gs://data/faq.jsonl"},
                    "metrics": ["ExactMatch"],
                }
            ],
        },
        "export": {"content": "Merged", "dtype": "BF16"},
        "export_proof": True,
    }  # fmt: skip
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = document
        for parent in parents:
            place = place[parent]
        place[name] = value
    return StageRequest.model_validate(document)


def preflight(**train: Any) -> PreflightOutcome:
    """A data check; ``train`` changes the report on the training data."""
    report = {
        "path": "spec.datasets.train[0]", "name": "chats", "uri": "gs://data/chats.jsonl",
        "revision": "sha256:11", "format": "Messages", "rows": 4800, "tokens": 912_000, "trained_tokens": 400_000,
    }  # fmt: skip
    return PreflightOutcome.model_validate(
        {
            "model": {
                "source": "Qwen/Qwen3-0.6B", "revision": "c1899de289a04d12100db370d81485cdf75e47ca",
                "architecture": "Qwen3ForCausalLM", "parameters": 596_049_920, "maxtext_model": "qwen3-0.6b",
                "layout": "scanned/bfloat16", "sizes": sizes(596_049_920),
            },
            "train": [report | train],
            "steps": 600,
            "max_seq_length": 2048,
            "row_width": 2048,
            "fingerprint": "f1",
            "fingerprint_inputs": {},
            "report": f"{FOLDER}/preflight/data.html",
        }
    )  # fmt: skip


def progress(step: int = 600, loss: float | None = 1.7) -> Progress:
    return Progress.model_validate(
        {
            "attempt": 1, "step": step, "total_steps": 600, "metrics": {"loss": loss},
            "evaluation": {"step": step, "loss": 1.8, "tokens": 9000}, "curve": [(1, 3.1), (step, 1.7)],
            "compilations": 3,
            "updated": "2026-11-20T12:00:00Z",
        }
    )  # fmt: skip


def status(**changes: Any) -> dict[str, Any]:
    return {
        "observedGeneration": 1,
        "phase": "Succeeded",
        "stages": [
            {"name": "Train", "phase": "Succeeded", "startTime": "2026-11-20T12:00:00Z",
             "completionTime": "2026-11-20T12:18:05Z"},
            {"name": "Evaluate", "phase": "Succeeded", "startTime": "2026-11-20T12:18:20Z",
             "completionTime": "2026-11-20T12:21:00Z"},
        ],
        "cost": {"chipHours": "1.412", "amount": "3.81"},
        "activeTime": {"seconds": 1320, "asOf": "2026-11-20T12:25:00Z"},
        "resolved": {"runFolder": FOLDER, "resources": {"tpu": "v6e-4", "capacity": "Spot", "why": "cheapest"}},
    } | changes  # fmt: skip


def samples(*answers: str, prompt: str = "How do I reset my password?") -> list[Sample]:
    """One sample for each answer, to numbered prompts."""
    return [
        Sample(
            dataset="faq",
            prompt=prompt if number == 0 else f"{prompt} ({number})",
            reference="Open Settings, then Security.",
            baseline="I do not know.",
            tuned=answer,
        )
        for number, answer in enumerate(answers)
    ]


def run(name: str = "support-bot", measured: Sequence[EvaluatedRow] = (), **fields: Any) -> RunRecords:
    """An evaluated run with these rows."""
    given: dict[str, Any] = {
        "name": name,
        "namespace": "team-a",
        "run_folder": f"gs://artifacts/team-a/{name}-0b5e3a52",
        "live": True,
        "spec": {"method": {"type": "SFT"}, "evaluation": {"datasets": [{"name": "faq"}]}},
        "status": status(),
        "request": request(),
        "preflight": preflight(),
        "progress": progress(),
        "evaluation": results(measured) if measured and "evaluation" not in fields else None,
        "rows": tuple(measured),
    }
    return RunRecords(**given | fields)
