"""Records of every kind: as they are at least, and with every field set that can be set beside the others."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from finetune_contract import EvaluatedRow, StageRequest, StageResult, data_report, failure, progress, result
from finetune_contract import request as request_module
from finetune_contract.base import Record
from finetune_contract.versions import CONTRACT_VERSION
from tests.unit.contract.schemas import definition, schema_of

type Object = dict[str, Any]

_WHEN = "2026-11-22T12:00:00Z"
#: A text for each pattern and each rule that the contract has, and a key.
_TEXTS = ("text", "gs://bucket/folder", "1.0", "Reason", "a" * 40, "sha256:" + "a" * 64, "full", "0" * 64)
_KEYS = ("key", "remat_policy")
#: How deep records are filled: a tokenizer is a model, which has a tokenizer.
_DEPTH = 8

_DATASET: Object = {"path": "spec.datasets.train[0]", "name": "train-0", "uri": "gs://data/chat.jsonl"}
_HUB: Object = {**_DATASET, "hugging_face": {"repo": "acme/chats"}}
del _HUB["uri"]
_PAIRS: Object = {**_DATASET, "format": "Preference"}
_DATA: Object = {"max_seq_length": 1024, "shuffle": True, "packing": False, "check": "Full"}
_NUMBERS: Object = {
    "global_batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 2e-5, "schedule": "Cosine",
    "weight_decay": 0.0, "max_grad_norm": 1.0, "optimizer": "AdamW", "seed": 42, "compute_precision": "BF16",
    "weight_precision": "FP32",
}  # fmt: skip
_EVALUATION: Object = {"baseline": True, "max_new_tokens": 128, "temperature": 0.0, "top_k": 0}
_REQUEST: Object = {
    "job": {"namespace": "team-a", "name": "support-bot", "uid": "0b5e3a52"},
    "stage": "Train",
    "attempt": 1,
    "run_folder": "gs://artifacts/team-a/support-bot-0b5e3a52",
    "cache": "gs://artifacts/cache",
    "model": {"uri": "gs://models/tiny"},
    "use_cache": "Use",
    "data": {"train": [_DATASET], **_DATA},
    "method": {"type": "SFT", "train_on_prompt": False},
    "hyperparameters": {"steps": 100, **_NUMBERS},
    "mesh": {"hosts": 1, "chips_per_host": 4, "fsdp": 4},
    "checkpointing": {"every_steps": 100, "keep_last": 2},
    "evaluation": _EVALUATION,
    "export": {"content": "Merged", "dtype": "BF16"},
    "export_proof": True,
}
_RESULT: Object = {
    "stage": "Train",
    "attempt": 1,
    "outcome": "Succeeded",
    "exit_code": 0,
    "started": _WHEN,
    "finished": _WHEN,
}
#: What has to be said by hand, since fields exclude each other.
_BY_HAND: dict[str, tuple[type[Record], Object]] = {
    "request": (StageRequest, _REQUEST),
    "request-hub": (
        StageRequest,
        {
            **_REQUEST,
            "model": {"hugging_face": {"repo": "acme/tiny"}, "tokenizer": {"uri": "gs://models/words"}},
            "data": {
                "train": [_HUB],
                "split_from_train": {"fraction": 0.1, "seed": 1},
                **_DATA,
                "packing": True,
            },
            "hyperparameters": {"epochs": 1.5, **_NUMBERS},
            "evaluation": {
                **_EVALUATION,
                "datasets": [{"source": _HUB, "metrics": ["ExactMatch"]}],
                "gates": [{"metric": "loss", "op": "LessOrEqual", "value": 1.5}],
            },
            "export": {
                "content": "Both",
                "dtype": "FP32",
                "destinations": [{"path": "spec.export.destinations[0]", "uri": "gs://bucket/out"}],
            },
        },
    ),
    "request-dpo": (
        StageRequest,
        {
            **_REQUEST,
            "model": {"orbax": "gs://models/items", "tokenizer": {"hugging_face": {"repo": "acme/words"}}},
            "data": {"train": [_PAIRS], "validation": [_PAIRS], **_DATA},
            "method": {
                "type": "DPO",
                "beta": 0.1,
                "label_smoothing": 0.0,
                "max_prompt_length": 512,
                "lora": {"rank": 8, "alpha": 16.0},
            },
            "evaluation": {
                **_EVALUATION,
                "datasets": [{"source": _PAIRS, "metrics": ["Loss"]}],
                "gates": [{"metric": "loss", "op": "LessOrEqual", "delta_from_baseline": 0.1}],
            },
            "export": {
                "content": "Merged",
                "dtype": "BF16",
                "destinations": [
                    {
                        "path": "spec.export.destinations[0]",
                        "hub": {"repo": "acme/out", "private": True, "token_variable": "HF_TOKEN_0"},
                    }
                ],
            },
        },
    ),
    "request-orpo": (
        StageRequest,
        {**_REQUEST, "method": {"type": "ORPO", "weight": 0.1, "max_prompt_length": 512}},
    ),
    "result-failed": (StageResult, {**_RESULT, "outcome": "Failed", "exit_code": 69}),
}


def roots() -> dict[str, type[Record]]:
    """The records that are files or travel alone: those that carry their version, and lines of files."""
    modules = (request_module, result, progress, failure, data_report)
    found = (each for module in modules for each in vars(module).values())
    records = (each for each in found if isinstance(each, type) and issubclass(each, Record))
    versioned = {each.__name__: each for each in records if "version" in each.model_fields}
    return {**versioned, "EvaluatedRow": EvaluatedRow}


@cache
def samples() -> dict[str, tuple[type[Record], Object]]:
    """By name: the record's type and its document, as it is written."""
    bases = dict(_BY_HAND)
    for name, record in roots().items():
        schema = schema_of(record)
        if record is StageResult:
            mapping = _details(schema)["discriminator"]["mapping"]
            for kind, reference in mapping.items():
                found = {"kind": kind, **_least(schema, definition(schema, reference))}
                stage = {"stage": kind} if kind in _stages(schema) else {}
                bases[f"result-{kind.lower()}"] = record, {**_RESULT, **stage, "details": found}
        elif record is not StageRequest:
            bases[_dashed(name)] = record, _least(schema, schema["$defs"][name])
    made = {}
    for name, (record, document) in bases.items():
        made[name] = record, _written(record, document)
        made[f"{name}-full"] = record, _written(record, filled(record, document))
    return made


def filled(record: type[Record], document: Object) -> Object:
    """``document`` with every field that it can take beside those that it has."""
    schema = schema_of(record)
    whole: Object = {**document}

    def fill(part: Object, at: Object, depth: int) -> None:
        for name, field in at["properties"].items():
            if name not in part and name != "requires":
                for value in _values(schema, field):
                    part[name] = value
                    if _valid(record, whole):
                        break
                    del part[name]
            for inner, place in _records_in(schema, field, part.get(name)):
                if depth < _DEPTH:
                    fill(inner, place, depth + 1)

    whole = _copied(whole)
    fill(whole, definition(schema, schema["$ref"]), 0)
    return whole


def with_unknown_keys(record: type[Record], document: Object) -> Object:
    """``document`` as a newer writer might write it: with more in it at every level."""
    schema = schema_of(record)

    def add(part: Object, at: Object) -> None:
        for name, field in at["properties"].items():
            for inner, place in _records_in(schema, field, part.get(name)):
                add(inner, place)
        part["x_unheard_of"] = {"deep": [1, {"er": None}]}

    more: Object = _copied(document)
    add(more, definition(schema, schema["$ref"]))
    return more


def _copied(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _copied(each) for name, each in document.items()}
    return [_copied(each) for each in document] if isinstance(document, list) else document


def _written(record: type[Record], document: Object) -> Object:
    made = record.model_validate(document, extra="forbid")
    if isinstance(made, StageRequest):
        made = made.for_trainer(CONTRACT_VERSION)
    return made.model_dump(mode="json", exclude_defaults=True)


def _valid(record: type[BaseModel], document: Object) -> bool:
    try:
        record.model_validate(document)
    except ValidationError:
        return False
    return True


def _records_in(schema: Object, field: Object, value: Any) -> Iterator[tuple[Object, Object]]:
    """Parts of ``value`` that are records, with their definitions."""
    if isinstance(value, list):
        for each in value:
            yield from _records_in(schema, field.get("items", {}), each)
    if not isinstance(value, dict):
        return
    if isinstance(field.get("additionalProperties"), dict):
        for each in value.values():
            yield from _records_in(schema, field["additionalProperties"], each)
    for option in field.get("anyOf", ()):
        yield from _records_in(schema, option, value)
    if "$ref" in field:
        yield value, definition(schema, field["$ref"])
    if "discriminator" in field:
        chosen = field["discriminator"]
        yield value, definition(schema, chosen["mapping"][value[chosen["propertyName"]]])


def _least(schema: Object, record: Object) -> Object:
    return {
        name: next(_values(schema, record["properties"][name]))
        for name in record.get("required", ())
        if record["properties"][name]
    }


def _values(schema: Object, field: Object) -> Iterator[Any]:
    """Values that differ from the default, the first that fits is taken."""
    for each in _candidates(schema, field):
        if each != field.get("default"):
            yield each


def _candidates(schema: Object, field: Object) -> Iterator[Any]:
    if "$ref" in field:
        yield _least(schema, definition(schema, field["$ref"]))
    for option in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        yield from _candidates(schema, option)
    if "enum" in field:
        yield from reversed(field["enum"])
        return
    match field.get("type"):
        case "string":
            texts = [_WHEN] if field.get("format") == "date-time" else _TEXTS
            yield from (text for text in texts if re.search(field.get("pattern", ""), text))
        case "boolean":
            yield from (True, False)
        case "integer":
            yield from (2, 1, 3)
        case "number":
            yield from (0.25, 2.5)
        case "array":
            if "prefixItems" in field:
                yield [next(_candidates(schema, each)) for each in field["prefixItems"]]
            else:
                yield from ([each] for each in _candidates(schema, field.get("items", {})))
        case "object":
            inner = field.get("additionalProperties")
            values = list(_candidates(schema, inner if isinstance(inner, dict) else {}))
            yield from ({key: each} for key in _KEYS for each in values)
        case None if not field.keys() & {"$ref", "anyOf", "oneOf"}:
            yield "anything"


def _details(schema: Object) -> Object:
    options = schema["$defs"]["StageResult"]["properties"]["details"]
    found: Object = next(each for each in (options, *options.get("anyOf", ())) if "discriminator" in each)
    return found


def _stages(schema: Object) -> list[str]:
    found: list[str] = schema["$defs"]["StageResult"]["properties"]["stage"]["enum"]
    return found


def _dashed(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
