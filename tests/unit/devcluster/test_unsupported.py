"""What local processes cannot honour is named, and nothing else is."""

from typing import Any

import pytest

from devcluster.agent.unsupported import unsupported
from tests.pathways_plans import SHAPES, plan, train

NAMED = {"name": "c"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"containers": [NAMED | {"startupProbe": {}}]}, "startupProbe"),
        ({"containers": [NAMED], "initContainers": [NAMED | {"lifecycle": {}}]}, "lifecycle"),
        ({"containers": [NAMED | {"restartPolicy": "Never"}]}, "the pod's restartPolicy only"),
        (
            {"containers": [NAMED], "initContainers": [NAMED | {"restartPolicy": "OnFailure"}]},
            "Always (a sidecar)",
        ),
        ({"containers": [NAMED], "volumes": [{"name": "v", "hostPath": {}}]}, "emptyDir only"),
    ],
)
def test_what_is_not_supported_is_named(spec: dict[str, Any], words: str) -> None:
    assert words in (unsupported({"spec": spec}) or "")


def test_a_head_with_its_sidecars_and_a_worker_are_supported() -> None:
    for job in train(plan(SHAPES[0][1]))["spec"]["replicatedJobs"]:
        assert unsupported(job["template"]["spec"]["template"]) is None
