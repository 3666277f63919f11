"""Models and CRDs accept the same documents: what the API server stores can be read, and nothing else."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from finetune_operator.api import InvalidObject, parse_job, parse_profile
from finetune_operator.api.common import ApiModel
from finetune_operator.api.job import FineTuneJob
from finetune_operator.api.profile import FineTuneProfile
from finetune_operator.api.status import FineTuneJobStatus
from tests.fuzz.faults import OF_VALUES, spoil
from tests.unit.api.documents import JOB, PROFILE, Document, following
from tests.unit.api.schema_oracle import Place, check_rules, check_schema
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
        and not list(_repeats(document, schema))
    )


def _repeats(value: Any, schema: Document, place: Place = ()) -> Iterator[Place]:
    """Lists in which a key occurs twice."""
    if isinstance(value, dict):
        below = [
            (name, item, schema.get("properties", {}).get(name) or schema.get("additionalProperties"))
            for name, item in value.items()
        ]
    elif isinstance(value, list):
        names = schema.get("x-kubernetes-list-map-keys", ())
        keys = [[item.get(name) for name in names] for item in value if isinstance(item, dict)]
        if any(key in keys[:index] and None not in key for index, key in enumerate(keys) if key):
            yield place
        below = [(index, item, schema.get("items")) for index, item in enumerate(value)]
    else:
        return
    for key, item, inner in below:
        if inner:
            yield from _repeats(item, inner, (*place, key))


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
    assume(not list(_repeats(document, schema)))
    status = FineTuneJobStatus.model_validate(document, by_alias=True, by_name=False)
    assert check_schema(status.to_document(), schema) == []
    assert FineTuneJobStatus.model_validate(status.to_document()) == status


@pytest.mark.parametrize("kind", KINDS)
@thorough
@given(data=st.data())
def test_spoilt_documents_are_judged_alike(kind: str, data: st.DataObject) -> None:
    base, schema, _, _ = KINDS[kind]
    section = data.draw(st.sampled_from(sorted(schema["properties"]["spec"]["properties"])))
    value = data.draw(following(schema["properties"]["spec"]["properties"][section]))
    document = deepcopy({**base, "spec": {**base["spec"], section: value}})
    spoil(data.draw, document["spec"], schema["properties"]["spec"], OF_VALUES)
    assert accepted_by_models(kind, document) is accepted_by_server(document, schema)


@st.composite
def _spoilt(draw: st.DrawFn) -> tuple[str, Document]:
    """A kind, and a document of it with three faults."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    base, schema, _, _ = KINDS[kind]
    sections = schema["properties"]["spec"]["properties"]
    chosen = draw(st.lists(st.sampled_from(sorted(sections)), min_size=1, max_size=2, unique=True))
    values = {section: draw(following(sections[section])) for section in chosen}
    document = deepcopy({**base, "metadata": {"name": "A"}, "spec": {**base["spec"], **values}})
    for _ in range(3):
        spoil(draw, document["spec"], schema["properties"]["spec"], OF_VALUES)
    return kind, document


_NULLS = {"defaults": {"resources": {"accelerator": None, "topology": "2x2"}}, "images": None}
_REPEATED = {"flavors": [{**PROFILE["spec"]["flavors"][0], "maxSlices": slices} for slices in (1, 0)]}
_TOO_MANY = {
    "flavors": [
        {**PROFILE["spec"]["flavors"][0], "name": f"flavor-{number}", "maxSlices": number}
        for number in range(33)
    ]
}


@settings(thorough, max_examples=120)
@given(spoilt=_spoilt())
@example(spoilt=("profile", {**PROFILE, "spec": {**PROFILE["spec"], **_NULLS}}))
@example(spoilt=("profile", {**PROFILE, "spec": {**PROFILE["spec"], **_REPEATED}}))
@example(spoilt=("profile", {**PROFILE, "spec": {**PROFILE["spec"], **_TOO_MANY}}))
def test_every_error_is_reported_at_once(spoilt: tuple[str, Document]) -> None:
    """Also the rules of objects that have another error, which pydantic does not ask."""
    kind, document = spoilt
    _, schema, parse, _ = KINDS[kind]
    wrong = {*check_schema(document, schema), *_repeats(document, schema)}
    expected = wrong | (set(check_rules(document, schema, sound=not wrong)) - wrong)
    assume(expected)
    with pytest.raises(InvalidObject) as caught:
        parse(document)
    assert expected <= {fault.location for fault in caught.value.faults}


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
