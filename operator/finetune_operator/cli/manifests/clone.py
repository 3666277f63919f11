"""The manifest of a job that is like another one. Pure."""

import re
from collections.abc import Iterator
from itertools import count

from finetune_operator.api import API_VERSION
from finetune_operator.cli.manifests.new_job import with_suffix
from finetune_operator.objects import Object

#: Members of a spec that say what happens to one job, now or once, or that name its own run folder.
_OF_ONE_JOB = ("suspend", "cancel", "retry", "resumeFrom")
#: Keys by which a tool finds the objects that it has applied: it would delete or change the copy, too.
_OF_TOOLS = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by")
_DOMAINS_OF_TOOLS = (
    "kubectl.kubernetes.io",
    "argocd.argoproj.io",
    "kustomize.toolkit.fluxcd.io",
    "helm.toolkit.fluxcd.io",
    "meta.helm.sh",
)


def cloned(job: Object, name: str, **replaced: Object) -> Object:
    """Returns the manifest of a job named ``name`` with the spec, labels and annotations of ``job``.

    What belongs to that job alone is left out: its status, what was requested of it (suspension, a retry, a
    cancellation), the run folder that it resumes, and the marks of tools that applied it. ``replaced`` are members of
    the spec.
    """
    metadata = job["metadata"]
    kept = {field: _own(metadata.get(field) or {}) for field in ("labels", "annotations")}
    spec = {key: value for key, value in job["spec"].items() if key not in _OF_ONE_JOB}
    if spec.get("planOnly") is False:  # The API server adds it.
        del spec["planOnly"]
    return {
        "apiVersion": API_VERSION,
        "kind": "FineTuneJob",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            **{field: values for field, values in kept.items() if values},
        },
        "spec": {**spec, **replaced},
    }


def _own(marks: Object) -> Object:
    """Returns the labels or annotations that no tool keeps for itself."""
    return {
        key: value
        for key, value in marks.items()
        if key not in _OF_TOOLS and key.partition("/")[0] not in _DOMAINS_OF_TOOLS
    }


def next_names(name: str) -> Iterator[str]:
    """Yields names for copies of a job: ``bot-2``, ``bot-3`` … for ``bot``, and ``bot-8`` … for ``bot-7``."""
    numbered = re.fullmatch(r"(.+)-(\d{1,6})", name)
    stem, last = (numbered[1], int(numbered[2])) if numbered else (name, 1)
    return (with_suffix(stem, f"-{number}") for number in count(last + 1))
