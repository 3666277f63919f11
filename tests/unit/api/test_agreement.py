"""Models and CRDs accept the same documents: what the API server stores can be read, and nothing else."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from finetune_operator.api import InvalidObject, parse_job, parse_profile
from finetune_operator.api.common import ApiModel
from finetune_operator.api.job import FineTuneJob
from finetune_operator.api.profile import FineTuneProfile
from finetune_operator.api.status import FineTuneJobStatus
from tests.unit.api.documents import JOB, PROFILE, Document, following
from tests.unit.api.schema_oracle import check_rules, check_schema
from tools.crd import job_crd, profile_crd, root_schema

pytestmark = pytest.mark.slow

JOB_SCHEMA, PROFILE_SCHEMA = root_schema(job_crd()), root_schema(profile_crd())
KINDS = {
    "job": (JOB, JOB_SCHEMA, parse_job, FineTuneJob),
    "profile": (PROFILE, PROFILE_SCHEMA, parse_profile, FineTuneProfile),
}
thorough = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def accepted_by_server(document: Document, schema: Document) -> bool:
    """Schema, rules, and the uniqueness that list maps ask for."""
    return (
        not check_schema(document, schema)
        and not check_rules(document, schema, sound=True)
        and not _repeats(document, schema)
    )


def _repeats(value: Any, schema: Document) -> bool:
    if isinstance(value, dict):
        below = [
            (item, schema.get("properties", {}).get(name) or schema.get("additionalProperties"))
            for name, item in value.items()
        ]
    elif isinstance(value, list):
        keys = [tuple(item[key] for key in schema.get("x-kubernetes-list-map-keys", ())) for item in value]
        if schema.get("x-kubernetes-list-type") == "map" and len(set(keys)) < len(keys):
            return True
        below = [(item, schema["items"]) for item in value]
    else:
        return False
    return any(_repeats(item, inner) for item, inner in below if inner)


def accepted_by_models(kind: str, document: Document) -> bool:
    _, _, parse, _ = KINDS[kind]
    try:
        parse(document)
    except InvalidObject:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
@thorough
@given(data=st.data())
def test_documents_that_follow_the_schema(kind: str, data: st.DataObject) -> None:
    base, schema, _, _ = KINDS[kind]
    # one section at a time: whole specs would nearly always break some rule
    section = data.draw(st.sampled_from(sorted(schema["properties"]["spec"]["properties"])))
    value = data.draw(following(schema["properties"]["spec"]["properties"][section]))
    document = {**base, "spec": {**base["spec"], section: value}}
    assert accepted_by_models(kind, document) is accepted_by_server(document, schema)


@pytest.mark.parametrize("kind", KINDS)
@thorough
@given(data=st.data())
def test_what_the_models_read_they_write_unchanged(kind: str, data: st.DataObject) -> None:
    base, schema, parse, _ = KINDS[kind]
    section = data.draw(st.sampled_from(sorted(schema["properties"]["spec"]["properties"])))
    value = data.draw(following(schema["properties"]["spec"]["properties"][section]))
    document = {**base, "spec": {**base["spec"], section: value}}
    assume(accepted_by_models(kind, document))
    written = parse(document).spec.to_document()
    defaults = {"suspend": False, "cancel": False, "planOnly": False} if kind == "job" else {}
    assert written == defaults | document["spec"]
    again = {**base, "spec": written}
    assert parse(again) == parse(document)


@thorough
@given(data=st.data())
def test_a_status_that_the_models_write_is_one_that_the_server_takes(data: st.DataObject) -> None:
    schema = JOB_SCHEMA["properties"]["status"]
    section = data.draw(st.sampled_from(sorted(schema["properties"])))
    document = {"observedGeneration": 1, section: data.draw(following(schema["properties"][section]))}
    assume(not _repeats(document, schema))
    status = FineTuneJobStatus.model_validate(document, by_alias=True, by_name=False)
    assert check_schema(status.to_document(), schema) == []
    assert FineTuneJobStatus.model_validate(status.to_document()) == status


_wrong: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 1, 1.5, "x", "", [], {}, ["x"], {"x": 1}, -1, 10**12]
)


@pytest.mark.parametrize("kind", KINDS)
@thorough
@given(data=st.data())
def test_spoilt_documents_are_judged_alike(kind: str, data: st.DataObject) -> None:
    base, schema, _, _ = KINDS[kind]
    section = data.draw(st.sampled_from(sorted(schema["properties"]["spec"]["properties"])))
    value = data.draw(following(schema["properties"]["spec"]["properties"][section]))
    document = deepcopy({**base, "spec": {**base["spec"], section: value}})
    container, key = data.draw(st.sampled_from(list(_slots(document["spec"]))))
    _spoil(data, container, key)
    assert accepted_by_models(kind, document) is accepted_by_server(document, schema)


@pytest.mark.parametrize("kind", KINDS)
@thorough
@given(data=st.data())
def test_every_error_is_reported_at_once(kind: str, data: st.DataObject) -> None:
    """Also the rules of objects that have another error, which pydantic does not ask."""
    base, schema, parse, _ = KINDS[kind]
    sections = schema["properties"]["spec"]["properties"]
    chosen = data.draw(st.lists(st.sampled_from(sorted(sections)), min_size=1, max_size=2, unique=True))
    values = {section: data.draw(following(sections[section])) for section in chosen}
    document = deepcopy({**base, "metadata": {"name": "A"}, "spec": {**base["spec"], **values}})
    for _ in range(3):
        _spoil(data, *data.draw(st.sampled_from(list(_slots(document["spec"])))))
    wrong = set(check_schema(document, schema))
    expected = wrong | (set(check_rules(document, schema, sound=not wrong)) - wrong)
    assume(expected)
    with pytest.raises(InvalidObject) as caught:
        parse(document)
    assert expected <= {fault.location for fault in caught.value.faults}


def _spoil(data: st.DataObject, container: Any, key: Any) -> None:
    action = data.draw(st.sampled_from(["replace", "remove", "add"]))
    if action == "replace":
        container[key] = deepcopy(data.draw(_wrong))
    elif action == "remove":
        del container[key]
    elif isinstance(container, dict):
        container["unknownField"] = deepcopy(data.draw(_wrong))


def _slots(value: Any) -> Any:
    """Every place that holds a value: its container and its key."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, item in list(entries):
        yield value, key
        yield from _slots(item)


@pytest.mark.parametrize("kind", KINDS)
def test_the_models_know_exactly_the_fields_of_the_schema(kind: str) -> None:
    _, schema, _, model = KINDS[kind]
    for part in ("spec", "status"):
        annotation = model.model_fields[part].annotation
        inner = annotation if isinstance(annotation, type) else annotation.__args__[0]
        assert issubclass(inner, ApiModel)
        assert [field.alias for field in inner.model_fields.values()] == list(
            schema["properties"][part]["properties"]
        )
