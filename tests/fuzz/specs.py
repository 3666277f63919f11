"""Generated jobs and profiles: a valid one with a few fields set to what their schema takes, or to something hostile.

``pytest tests/integration/test_fuzz.py`` draws 300. More, by hand:
``FINETUNE_FUZZ=10000 pytest tests/integration/test_fuzz.py --hypothesis-seed=20261122``.
"""

import os
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from finetune_operator.api import FineTuneJobSpec, FineTuneProfileSpec
from tests.fuzz.faults import OF_VALUES, OF_YAML, manifest, spoil
from tests.unit.api.documents import following
from tools.structural_schema import structural_schema

type Document = dict[str, Any]
type Path = tuple[str, ...]

#: How many examples a fuzz test draws.
EXAMPLES = int(os.environ.get("FINETUNE_FUZZ", "300"))

#: Addresses, good ones and what a hostile tenant would try.
URIS = (
    "gs://artifacts/runs/team-a/other-0badcafe/export/model",
    "gs://team-a/chats.jsonl",
    "gs://team-a/*/part-?.jsonl",
    "gs://team-a/exports",
    "gs://artifacts/runs/team-a/exports/bot",
    "gs://artifacts/runs/team-b/secret-0badcafe/export/model",
    "gs://artifacts/runs/*/secret-*/preflight/samples.jsonl",
    "gs://artifacts/runs/team-a/../team-b/x",
    "gs://artifacts/runs/team-a//x",
    "gs://artifacts/runs/team-a/./x",
    "gs://team-a/%2e%2e/x",
    "gs://cache/convert/0123",
    "file:///etc/passwd",
    "file:///data/../etc/passwd",
    "gs://team-a/a b",
    "gs://team-a/\u202eevil",
    "gs://team-a/" + "x" * 900,
)
#: What no field of that type takes, or takes only here and there.
HOSTILE = (
    "", " ", "\0", "\n", "${oc.env:HOME}", "{{ 7*7 }}", "$(HF_TOKEN)", "../..", "a" * 5000, "1e999", "NaN", "-0",
    -1, 0, 2**31, 2**63, 1.5, True, None, [], {}, [[]], {"": ""}, ["x", "x"],
)  # fmt: skip

JOB: Document = {
    "apiVersion": "tpu-finetune.dev/v1alpha1",
    "kind": "FineTuneJob",
    "metadata": {"name": "fuzzed", "namespace": "team-a"},
    "spec": {
        "model": {"uri": "gs://team-a/models/tiny"},
        "datasets": {
            "train": [{"uri": "gs://team-a/chats.jsonl"}],
            "validation": [{"uri": "gs://team-a/held-back.jsonl"}],
        },
        "method": {"type": "SFT"},
        "resources": {"tpu": "v6e-4"},
    },
}
PROFILE: Document = {
    "apiVersion": "tpu-finetune.dev/v1alpha1",
    "kind": "FineTuneProfile",
    "metadata": {"name": "fuzzed", "annotations": {"tpu-finetune.dev/is-default-profile": "true"}},
    "spec": {
        "namespaces": ["team-a"],
        "currency": "USD",
        "images": {"trainer": "registry.example/finetune-trainer@sha256:" + "0" * 64},
        "storage": {"artifacts": "gs://artifacts/runs", "cache": "gs://cache"},
        "flavors": [
            {
                "name": "spot",
                "capacity": "Spot",
                "accelerator": "tpu-v6e-slice",
                "topologies": ["2x2", "2x4", "4x4"],
                "chipsPerHost": 4,
                "maxSlices": 2,
                "chipHourPrice": 1.20,
            },
            {
                "name": "whole-host",
                "capacity": "OnDemand",
                "accelerator": "tpu-v6e-slice",
                "topologies": ["2x4"],
                "chipsPerHost": 8,
            },
        ],
        "constraints": {
            "uris": {
                "read": ["gs://team-a/*", "hf://models/*", "hf://datasets/*", "hf://benchmarks/*"],
                "write": ["gs://team-a/*", "hf://*"],
            }
        },
    },
}

#: What a person or a template may write into ``metadata``.
METADATA: tuple[Document, ...] = (
    *({"name": name} for name in (
        "", "A", "a.b", "1a", "9", "a" * 28, "a" * 29, "a" * 63, "a" * 64, "a" * 254, "a-", "-a", "a_b", "a/b", "a b",
        "a\n", "\u00e4", "null", "true", 5, True, None, [], {},
    )),
    {"name": "", "generateName": "a-"}, {"name": None, "generateName": "a" * 24}, {"name": None, "generateName": "A"},
    *({"labels": labels} for labels in (
        {}, {"a": "b"}, {"a": ""}, {"a": "b c"}, {"a": "-b"}, {"a": "b" * 64}, {"a": 1}, {"a": True}, {"a": None},
        {"": "b"}, {"a b": "c"}, {"a/b": "c"}, {"A/b": "c"}, {"a/b/c": "d"}, {"/a": "b"}, {"a/": "b"},
        {"a" * 64: "b"}, {f"{'a' * 254}/b": "c"}, "a", ["a"], None,
    )),
    *({"annotations": annotations} for annotations in (
        {"a": "\u00e4 b"}, {"a b": "c"}, {"A/b": "c"}, {"a": 1}, {"a": None}, {"": ""}, "a", [], None,
    )),
    {"unknown": 1}, {"unknown": None}, {"Labels": {}}, {"lables": {"a": "b"}}, {"generation": 7}, {"generation": "7"},
    {"uid": 5}, {"namespace": 5},
)  # fmt: skip

JOB_SCHEMA = structural_schema(FineTuneJobSpec)
PROFILE_SCHEMA = structural_schema(FineTuneProfileSpec)


def leaves(schema: Document, path: Path = ()) -> Iterator[tuple[Path, Document]]:
    """Every field that is no section of named fields, with its schema."""
    for name, field in schema.get("properties", {}).items():
        if field.get("type") == "object" and "properties" in field:
            yield from leaves(field, (*path, name))
        else:
            yield (*path, name), field


JOB_LEAVES = list(leaves(JOB_SCHEMA))
PROFILE_LEAVES = list(leaves(PROFILE_SCHEMA))


def put(document: Document, path: Path, value: Any) -> None:
    """Set the field at ``path`` of a nested document."""
    *sections, name = path
    for section in sections:
        below = document.setdefault(section, {})
        if not isinstance(below, dict):
            return
        document = below
    document[name] = value


def values(path: Path, schema: Document) -> st.SearchStrategy[Any]:
    """What the field may be set to: mostly what its schema takes."""
    good = following(schema)
    if path[-1].lower().endswith("uri") or path[-1] == "runFolder":
        good = st.sampled_from(URIS)
    return st.integers(0, 15).flatmap(lambda dice: st.sampled_from(HOSTILE) if dice == 7 else good)


@st.composite
def changed(draw: st.DrawFn, base: Document, fields: list[tuple[Path, Document]], most: int) -> Document:
    """``base`` with up to ``most`` fields of its spec set."""
    document = deepcopy(base)
    chosen = draw(st.lists(st.sampled_from(range(len(fields))), max_size=most, unique=True))
    for path, schema in (fields[index] for index in chosen):
        put(document["spec"], path, draw(values(path, schema)))
    if draw(st.integers(0, 30)) == 17:
        put(document["spec"], (draw(st.sampled_from(["unknown", "Suspend", "__proto__"])),), 1)
    return document


@st.composite
def manifests(draw: st.DrawFn, base: Document, fields: list[tuple[Path, Document]], schema: Document) -> str:
    """Texts of manifests: valid ones, and ones with up to three faults. ``schema`` is that of the whole object."""
    document = draw(changed(base, fields, 4))
    if draw(st.integers(0, 5)) == 3:
        document["metadata"].update(deepcopy(draw(st.sampled_from(METADATA))))
    for _ in range(draw(st.integers(0, 3))):
        spoil(draw, document, schema, OF_VALUES + OF_YAML)
    return manifest(document)


def jobs() -> st.SearchStrategy[Document]:
    return changed(JOB, JOB_LEAVES, 2)


def profiles() -> st.SearchStrategy[Document]:
    return changed(PROFILE, PROFILE_LEAVES, 2)
