"""The controller Pathways: how it is resolved, and what it refuses."""

from dataclasses import replace
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.catalog import all_shapes, pathways_images
from finetune_operator.planning import (
    Findings,
    Refused,
    admit,
    check_profile_object,
    read_stored_plan,
    render_stored_plan,
    replan,
    stage_request,
)
from finetune_operator.planning.defaulted import profile_spec
from finetune_operator.planning.slices.pathways import resolve_pathways
from tests.unit.lifecycle.world import Object, job, profile

JAX = pathways_images().jax
TRAINER = {"trainer": "registry.example/finetune-trainer:0.2.0"}
OWN = {
    "pathwaysServer": f"mirror/server:20261101-jax_{JAX}",
    "pathwaysProxy": "mirror/proxy@sha256:" + "1" * 64,
}


def wanted(**resources: Any) -> Object:
    return job(resources={"tpu": "v6e-4", "controller": "Pathways", **resources})


def test_images_and_scratch_have_defaults() -> None:
    pathways = admit(wanted(), [profile()]).plan.pathways
    assert pathways is not None
    known = pathways_images()
    assert (pathways.server, pathways.proxy) == (known.server, known.proxy)
    assert pathways.scratch == "gs://artifacts/team-a/pathways"
    assert pathways.instance_type == "tpuv6e:2x2"
    assert pathways.head_node_selector == {}


def test_images_and_scratch_of_the_profile_are_used() -> None:
    storage = {"artifacts": "gs://artifacts", "pathwaysScratch": "gs://scratch/of-team/"}
    nodes = {"headNodeSelector": {"pool": "head"}}
    pathways = admit(wanted(), [profile(images=TRAINER | OWN, storage=storage, pathways=nodes)]).plan.pathways
    assert pathways is not None
    assert (pathways.server, pathways.proxy) == (OWN["pathwaysServer"], OWN["pathwaysProxy"])
    assert pathways.scratch == "gs://scratch/of-team/team-a"
    assert pathways.head_node_selector == {"pool": "head"}


@pytest.mark.parametrize(
    ("images", "jax"),
    [
        ({}, JAX),
        (OWN, JAX),
        (dict.fromkeys(OWN, "mirror/server@sha256:" + "1" * 64), None),
    ],
)
def test_preflights_request_has_the_jax_version_of_the_server(
    images: dict[str, str], jax: str | None
) -> None:
    plan = admit(wanted(), [profile(images=TRAINER | images)]).plan
    assert stage_request(plan, Stage.PREFLIGHT, 1, Findings()).pathways_jax == jax


def test_mcjax_has_no_pathways_settings() -> None:
    admission = admit(job(), [profile()])
    assert admission.plan.pathways is None
    assert admission.plan.mesh.controller == "McJAX"
    assert admission.stored.profile == profile()["spec"]


def test_the_images_of_an_admitted_job_survive_an_upgrade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission = admit(wanted(), [profile()])
    stored = read_stored_plan(render_stored_plan(admission.stored))
    newer = replace(pathways_images(), jax="9.9.9", server="server:jax-9.9.9", proxy="proxy:jax-9.9.9")
    monkeypatch.setattr("finetune_operator.planning.slices.pathways.pathways_images", lambda: newer)
    assert replan(wanted(), stored).pathways == admission.plan.pathways


FAULTS: list[tuple[dict[str, Any], dict[str, str], tuple[str, ...]]] = [
    (
        {"pathwaysServer": OWN["pathwaysServer"]},
        {},
        ("images.pathwaysServer is set", "images.pathwaysProxy is not", f"jax-{JAX}"),
    ),
    ({"pathwaysProxy": OWN["pathwaysProxy"]}, {}, ("images.pathwaysProxy is set", "pathwaysServer is not")),
    (
        OWN | {"pathwaysServer": "mirror/server:jax-0.9.0"},
        {},
        ("images.pathwaysServer mirror/server:jax-0.9.0", "is for JAX 0.9.0", f"has JAX {JAX}"),
    ),
    (
        OWN | {"pathwaysProxy": "mirror/proxy:latest"},
        {},
        (
            "images.pathwaysProxy mirror/proxy:latest does not name its JAX release",
            f"has JAX {JAX}",
            "digest",
        ),
    ),
    ({}, {"pathwaysScratch": "file:///scratch"}, ("storage.pathwaysScratch is file:///scratch", "gs://")),
    (
        {},
        {"pathwaysScratch": "gs://cloud-pathways-staging/tmp"},
        ("gs://cloud-pathways-staging/tmp", "all users of Pathways share", "your own"),
    ),
]


@pytest.mark.parametrize(("images", "storage", "expected"), FAULTS)
def test_an_unusable_profile_is_refused_for_any_job(
    images: dict[str, str], storage: dict[str, str], expected: tuple[str, ...]
) -> None:
    wrong = profile(images=TRAINER | images, storage={"artifacts": "gs://artifacts"} | storage)
    with pytest.raises(Refused) as caught:
        check_profile_object(wrong)
    assert caught.value.reason == Reason.PROFILE_INVALID
    for part in ('profile "local"', *expected, "#ml-help"):
        assert part in caught.value.message
    with pytest.raises(Refused, match=r"profile"):
        admit(job(), [wrong])


def refusal(*arguments: Any) -> str:
    with pytest.raises(Refused) as caught:
        admit(*arguments)
    assert caught.value.reason == Reason.PATHWAYS_NOT_POSSIBLE
    assert "spec.resources.controller is Pathways" in caught.value.message
    return caught.value.message


def test_artifacts_that_the_servers_cannot_read_need_a_scratch_folder() -> None:
    local = profile(storage={"artifacts": "file:///artifacts"})
    assert "storage.pathwaysScratch" in refusal(wanted(), [local])
    admit(job(), [local])
    apart = profile(storage={"artifacts": "file:///artifacts", "pathwaysScratch": "gs://scratch"})
    admit(wanted(), [apart])


def test_a_machine_type_unknown_to_pathways_is_refused() -> None:
    placement = admit(wanted(), [profile()]).plan.placement
    for shape in all_shapes():
        if shape.pathways_instance_type is None:
            with pytest.raises(Refused, match=f"does not know {shape.accelerator} {shape.topology}"):
                resolve_pathways(
                    profile_spec("local", profile()["spec"]), "team-a", replace(placement, shape=shape)
                )


def test_capacity_that_a_queue_provisions_is_refused() -> None:
    placement = replace(
        admit(wanted(), [profile()]).plan.placement, capacity="FlexStart", queued_provisioning=True
    )
    with pytest.raises(Refused, match=r"FlexStart is provisioned through a queue.*OnDemand") as caught:
        resolve_pathways(profile_spec("local", profile()["spec"]), "team-a", placement)
    assert caught.value.reason == Reason.PATHWAYS_NOT_POSSIBLE


@pytest.mark.parametrize(("admitted", "now"), [("McJAX", "Pathways"), ("Pathways", "McJAX")])
def test_the_controller_of_an_admitted_job_is_kept(admitted: str, now: str) -> None:
    stored = admit(wanted(controller=admitted), [profile()]).stored
    with pytest.raises(Refused, match=f"is {now}, but the job was admitted with {admitted}") as caught:
        replan(wanted(controller=now), stored)
    assert caught.value.reason == Reason.PATHWAYS_NOT_POSSIBLE
    replan(wanted(controller=admitted), stored)


def test_a_profile_may_lock_the_controller() -> None:
    locked = profile(constraints={"locked": ["resources.controller"]})
    with pytest.raises(Refused, match=r"resources\.controller is Pathways, it must be the profile's McJAX"):
        admit(wanted(), [locked])
