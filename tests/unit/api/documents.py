"""Documents to test with: a minimal job and profile, and strategies that follow a structural schema."""

import math
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

type Document = dict[str, Any]

JOB: Document = {
    "apiVersion": "tpu-finetune.dev/v1alpha1",
    "kind": "FineTuneJob",
    "metadata": {"name": "support-bot", "namespace": "team-a"},
    "spec": {
        "model": {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}},
        "datasets": {"train": [{"uri": "gs://team-a/chats.jsonl"}]},
        "method": {"type": "SFT", "lora": {"rank": 16}},
    },
}
PROFILE: Document = {
    "apiVersion": "tpu-finetune.dev/v1alpha1",
    "kind": "FineTuneProfile",
    "metadata": {"name": "local"},
    "spec": {
        "images": {"trainer": "localhost/finetune-trainer:dev"},
        "storage": {"artifacts": "gs://artifacts/runs"},
        "flavors": [
            {
                "name": "ondemand",
                "capacity": "OnDemand",
                "accelerator": "tpu-v6e-slice",
                "topologies": ["2x2"],
            }
        ],
    },
}


def job(**spec: Any) -> Document:
    """The minimal job with these members of its spec; None removes one."""
    return _with_spec(JOB, spec)


def profile(**spec: Any) -> Document:
    """The minimal profile with these members of its spec; None removes one."""
    return _with_spec(PROFILE, spec)


def _with_spec(document: Document, spec: Document) -> Document:
    changed = deepcopy(document)
    changed["spec"].update(spec)
    changed["spec"] = {name: value for name, value in changed["spec"].items() if value is not None}
    return changed


_ASCII = st.characters(codec="ascii", exclude_categories=("Cc",))


#: By identity of the schema, which is kept so that no other gets its identity. Building a strategy of the whole API
#: takes far longer than drawing from it.
_built: dict[int, tuple[Document, st.SearchStrategy[Any]]] = {}


def following(schema: Document) -> st.SearchStrategy[Any]:
    """Values that every keyword of the schema accepts; its rules may refuse them."""
    if id(schema) not in _built:
        _built[id(schema)] = (schema, _following(schema))
    return _built[id(schema)][1]


def _following(schema: Document) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema["minimum"], min(schema["maximum"], schema["minimum"] + 9))
        case "number":
            return st.floats(
                schema.get("minimum"),
                schema.get("maximum"),
                exclude_min="exclusiveMinimum" in schema,
                exclude_max="exclusiveMaximum" in schema,
                allow_nan=False,
                allow_infinity=False,
            )
        case "string":
            return _strings(schema)
        case "array":
            return st.lists(
                following(schema["items"]),
                min_size=schema.get("minItems", 0),
                max_size=min(schema["maxItems"], schema.get("minItems", 0) + 2),
            )
        case _:
            return _objects(schema)


def _strings(schema: Document) -> st.SearchStrategy[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength", 40)
    if schema.get("format") == "date-time":
        return st.just("2026-01-02T03:04:05Z")
    if schema.get("format") == "date":
        return st.just("2026-01-02")
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True, alphabet=_ASCII).filter(
            lambda text: least <= len(text) <= most and not _overflows(text)
        )
    return st.text(_ASCII, min_size=least, max_size=min(most, 12))


def _overflows(text: str) -> bool:
    """``1e999``: an infinity to Python and to cel-python, a conversion error to the API server."""
    try:
        return math.isinf(float(text))
    except ValueError:
        return False


def _objects(schema: Document) -> st.SearchStrategy[Document]:
    if "additionalProperties" in schema:
        return st.dictionaries(
            st.text(_ASCII, min_size=1, max_size=12), following(schema["additionalProperties"]), max_size=3
        )
    required = set(schema.get("required", ()))
    members = {name: following(field) for name, field in schema.get("properties", {}).items()}
    return st.fixed_dictionaries(
        {name: member for name, member in members.items() if name in required},
        optional={name: member for name, member in members.items() if name not in required},
    )
