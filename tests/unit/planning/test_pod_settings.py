"""``pod`` of a profile: what is refused, and which labels of a job are copied, at admission alone."""

from typing import Any

import pytest

from finetune_operator.planning import Refused, admit, check_profile_object, replan
from finetune_operator.planning.stored_plan import read_stored_plan, render_stored_plan
from tests.unit.api.documents import JOB, Document, profile

FAULTS = {
    "a key with a space": ({"labels": {"cost center": "a"}}, "spec.pod.labels: cost center is no key"),
    "a key that ends in a dash": ({"labels": {"cost-": "a"}}, "cost- is no key"),
    "a key of two slashes": ({"labels": {"a/b/c": "a"}}, "a/b/c is no key"),
    "a key without a name": ({"labels": {"acme.com/": "a"}}, "acme.com/ is no key"),
    "a key without a domain": ({"labels": {"/team": "a"}}, "/team is no key"),
    "a domain in capitals": ({"labels": {"Acme.com/team": "a"}}, "Acme.com/team is no key"),
    "a long name": ({"labels": {"a" * 64: "a"}}, "is no key"),
    "a long domain": ({"labels": {"a" * 254 + "/a": "a"}}, "is no key"),
    "a value with a space": ({"labels": {"team": "a b"}}, "spec.pod.labels[team]: a b is no value"),
    "a value with a line break": ({"labels": {"team": "a\n"}}, "is no value"),
    "a value that begins with a dash": ({"labels": {"team": "-a"}}, "-a is no value"),
    "a value in other letters": ({"labels": {"team": "Müller"}}, "Müller is no value"),
    "a key of an annotation": ({"annotations": {"a b": "any text"}}, "spec.pod.annotations: a b is no key"),
    "a copied key": ({"jobLabels": ["a b"]}, "spec.pod.jobLabels: a b is no key"),
    **{
        f"a copied key of {key.partition('/')[0]}": ({"jobLabels": [key]}, f"{key} is read by controllers")
        for key in (
            "kueue.x-k8s.io/queue-name",
            "x-k8s.io/a",
            "job-name",
            "batch.kubernetes.io/job-name",
            "kubernetes.io/a",
            "jobset.sigs.k8s.io/restart-attempt",
            "k8s.io/a",
            "tpu-finetune.dev/job",
            "team.tpu-finetune.dev/job",
        )
    },
}


@pytest.mark.parametrize("case", FAULTS)
def test_settings_that_kubernetes_or_we_refuse_are_refused_in_the_profile(case: str) -> None:
    settings, said = FAULTS[case]
    with pytest.raises(Refused) as refused:
        check_profile_object(profile(pod=settings))
    assert refused.value.reason == "ProfileInvalid"
    assert said in refused.value.message


def test_settings_that_kubernetes_takes_are_taken() -> None:
    keys = [
        "team",
        "acme.com/Cost_center.1",
        "app.kubernetes.io/part-of",
        "foo-k8s.io/a",
        "a" * 253 + "/" + "b" * 63,
    ]
    labels = dict.fromkeys(keys, "") | {"v": "A-b_c.9"}
    check_profile_object(
        profile(
            pod={
                "labels": labels,
                "annotations": {"a": "any text, ü\n"},
                "jobLabels": ["foo-k8s.io/a", "team"],
            }
        )
    )


def labelled(**labels: str) -> Document:
    return {**JOB, "metadata": {**JOB["metadata"], "uid": "u-1", "labels": labels}}


OPEN: dict[str, Any] = {"constraints": {"mode": "Open"}}
COPYING = profile(pod={"labels": {"team": "platform", "env": "prod"}, "jobLabels": ["team", "cost"]}, **OPEN)


def test_listed_labels_of_a_job_are_copied_at_admission_and_stay() -> None:
    admission = admit(labelled(team="nlp", cost="7", other="x"), [COPYING])
    assert admission.plan.pod.labels == {"team": "nlp", "cost": "7", "env": "prod"}
    stored = read_stored_plan(render_stored_plan(admission.stored))
    assert stored == admission.stored
    edited = replan(labelled(team="edited", cost="9"), stored)
    assert edited.pod.labels == admission.plan.pod.labels


def test_a_job_without_listed_labels_gets_those_of_the_profile() -> None:
    assert admit(labelled(other="x"), [COPYING]).plan.pod.labels == {"team": "platform", "env": "prod"}


def test_a_plan_that_copies_nothing_is_stored_as_before() -> None:
    stored = admit(labelled(team="nlp"), [profile(**OPEN)]).stored.data
    assert not [key for key in stored if "labels" in key]
