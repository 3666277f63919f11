"""Objects with nulls and generated names, and whether the API server takes them: asked of it and of ``validate``."""

from typing import Any

from tests.unit.api.documents import JOB, PROFILE, Document, job

_TRAIN = {"uri": "gs://team-a/chats.jsonl"}


def _with(document: Document, **metadata: Any) -> Document:
    return {**document, "metadata": metadata}


def _spec_of(document: Document, **fields: Any) -> Document:
    """The fields as they are, whereas ``job`` removes those that are null."""
    return {**document, "spec": {**document["spec"], **fields}}


#: Of a name that no cluster has.
_PROFILE = _with(PROFILE, name="created")

CREATED: dict[str, tuple[Document, bool]] = {
    "a generated name": (_with(JOB, generateName="tune-"), True),
    "a generated name without a dash": (_with(JOB, generateName="tune"), True),
    "the longest generated name": (_with(JOB, generateName="a" * 23), True),
    "a generated name that is too long": (_with(JOB, generateName="a" * 24), False),
    "a generated name that the server cuts": (_with(JOB, generateName="a" * 70), False),
    "a generated name in capitals": (_with(JOB, generateName="Tune-"), False),
    "a generated name that begins with a digit": (_with(JOB, generateName="1tune-"), False),
    "a name and a generated one": (_with(JOB, name="tune", generateName="a" * 40), True),
    "an empty name and a generated one": (_with(JOB, name="", generateName="tune-"), True),
    "a null for a name and a generated one": (_with(JOB, name=None, generateName="tune-"), True),
    "an empty generated name": (_with(JOB, generateName=""), False),
    "a null for a generated name": (_with(JOB, generateName=None), False),
    "an empty name": (_with(JOB, name=""), False),
    "a generated name of a profile": (_with(PROFILE, generateName="team-"), True),
    "nulls in metadata": (
        _with(
            JOB,
            name="a",
            labels=None,
            annotations=None,
            creationTimestamp=None,
            namespace=None,
            finalizers=None,
        ),
        True,
    ),
    "a null among labels": (_with(JOB, name="a", labels={"a": None}), True),
    "a null for metadata": ({**JOB, "metadata": None}, False),
    "a null for a section": (_spec_of(JOB, hyperparameters=None), True),
    "a null for a field with a default": (_spec_of(JOB, suspend=None, planOnly=None), True),
    "a null in a section": (_spec_of(JOB, hyperparameters={"epochs": None}), True),
    "a null for one of two that exclude each other": (
        _spec_of(JOB, hyperparameters={"epochs": None, "steps": 5}),
        True,
    ),
    "a null for a required field": (_spec_of(JOB, model=None), False),
    "a null for a list": (_spec_of(JOB, datasets={"train": [_TRAIN], "validation": None}), True),
    "a null in a list": (_spec_of(JOB, datasets={"train": [_TRAIN, None]}), False),
    "a null in an item of a list": (_spec_of(JOB, datasets={"train": [{**_TRAIN, "weight": None}]}), True),
    "a null for a required field of an item": (_spec_of(JOB, datasets={"train": [{"uri": None}]}), False),
    "a null for an unknown field": (_spec_of(JOB, hyperparamters=None), False),
    "a null in a map": (_spec_of(JOB, engineOverrides={"remat_policy": None}), True),
    "a null for an unknown field at the top": ({**JOB, "sepc": None}, False),
    "a null for the spec": ({**JOB, "spec": None}, False),
    "a null for the status": ({**JOB, "status": None}, True),
    "nulls in a profile": (
        _spec_of(_PROFILE, pod={"labels": {"a": None}, "env": None}, queue=None, namespaces=None),
        True,
    ),
    "a null in a list of a profile": (_spec_of(_PROFILE, namespaces=[None]), False),
    "a job without nulls": (job(), True),
    "a profile without nulls": (_PROFILE, True),
}
