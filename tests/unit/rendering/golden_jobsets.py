"""JobSets against golden files, with each request as its differences from one that is written in full.

So a field that all requests have, a hyperparameter for example, stands in ``golden/request.json`` alone.
"""

import copy
import json
from pathlib import Path
from typing import Any

import yaml

from finetune_contract import Stage
from finetune_contract.request import REQUEST_VARIABLE
from finetune_operator.rendering.labels import PLAN_ANNOTATION
from finetune_operator.rendering.offline import first_jobsets, offline_admission
from tests.snapshots import check

GOLDEN = Path(__file__).parent / "golden"
WHOLE = GOLDEN / "request.json"


def plan_offline(job: dict[str, Any], profile: dict[str, Any]) -> list[tuple[Stage, dict[str, Any]]]:
    """The first JobSet of each stage."""
    return first_jobsets(offline_admission(job, profile).plan)


def check_request(jobset: dict[str, Any]) -> None:
    """The request that the other golden files name their differences from."""
    (request,) = _requests(jobset)
    check(WHOLE, json.dumps(json.loads(request["value"]), indent=1) + "\n")


def check_jobset(name: str, jobset: dict[str, Any]) -> None:
    """``name``: the golden file's, without its suffix."""
    shown = copy.deepcopy(jobset)
    # of the merged spec with all defaults, so any new one would change every file
    shown["metadata"]["annotations"][PLAN_ANNOTATION] = "sha256 of the stored plan"
    whole = json.loads(WHOLE.read_text())
    for request in _requests(shown):
        request["value"] = {WHOLE.name: differences(whole, json.loads(request["value"]))}
    check(GOLDEN / f"{name}.yaml", yaml.safe_dump(shown, sort_keys=False, width=110))


def differences(whole: Any, other: Any) -> Any:
    """What ``other`` says differently: members of maps by name, of which None is gone; anything else as it is."""
    if not isinstance(whole, dict) or not isinstance(other, dict):
        return other
    names = [*other, *(name for name in whole if name not in other)]
    return {
        name: differences(whole.get(name), other.get(name))
        for name in names
        if whole.get(name) != other.get(name)
    }


def _requests(jobset: dict[str, Any]) -> list[dict[str, Any]]:
    pods = (job["template"]["spec"]["template"]["spec"] for job in jobset["spec"]["replicatedJobs"])
    return [
        variable
        for pod in pods
        for container in (*pod.get("initContainers", ()), *pod["containers"])
        for variable in container.get("env", ())
        if variable["name"] == REQUEST_VARIABLE
    ]
