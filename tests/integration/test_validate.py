"""``finetune validate`` and the API server judge generated manifests alike, and find the same errors in them.

Known differences, which are not errors of either:

- After an error of type, length, enumeration or a missing field the server evaluates no rule between fields;
  ``validate`` reports every error at once.
- A repeated item is reported by the server, ``validate`` names its list.
- An error of a generated name is one of ``metadata.name`` to the server; ``validate`` names the prefix in the manifest.
- Without ``metadata`` the server names ``metadata.name``, ``validate`` what is to be added.
- In what is not valid YAML for ``validate``, such as duplicate keys, or of an unknown kind, the server names further
  fields.
- Of an object where a text, a number or a list belongs, the server also names the fields.
- The server names ``metadata.labels`` for a value of a label, ``validate`` the label.
- ``validate`` does not check what only controllers and the server itself write: a status, and in ``metadata``
  finalizers, owner references, managed fields, times and the resource version, and a prefix beside a name.
"""

import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from finetune_operator.cli.manifests.validate import validate_text
from tests.doubles.local_cluster import LocalCluster
from tests.fuzz.specs import JOB, JOB_LEAVES, PROFILE, PROFILE_LEAVES, manifests
from tests.integration.dry_run import DryRun
from tools.crd import job_crd, profile_crd, root_schema

GROUP = "/apis/tpu-finetune.dev/v1alpha1"
#: Without a namespace, which is that of the request.
_JOB = {**JOB, "metadata": {"name": "fuzzed"}}
_JOB_SCHEMA, _PROFILE_SCHEMA = (root_schema(crd) for crd in (job_crd(), profile_crd()))
for _schema in (_JOB_SCHEMA, _PROFILE_SCHEMA):
    del _schema["properties"]["status"]
KINDS = {
    "jobs": ("namespaces/{}/finetunejobs", manifests(_JOB, JOB_LEAVES, _JOB_SCHEMA)),
    "profiles": ("finetuneprofiles", manifests(PROFILE, PROFILE_LEAVES, _PROFILE_SCHEMA)),
}


def _named(path: str) -> str:
    """The field that both name."""
    if path in ("metadata", "metadata.generateName"):
        return "metadata.name"
    found = re.match(r"metadata\.(labels|annotations)", path)
    return found[0] if found else path


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "examples", [150, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.thorough])]
)
@pytest.mark.parametrize("kind", KINDS)
def test_validate_says_what_the_api_server_says(
    cluster: LocalCluster, namespace: str, kind: str, examples: int
) -> None:
    resource, generated = KINDS[kind]
    path = f"{GROUP}/{resource.format(namespace)}"
    accepted: Counter[bool] = Counter()

    with DryRun.on(cluster) as server:

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(generated)
        def run(manifest: str) -> None:
            verdict = server.create(path, manifest)
            problems = validate_text(manifest, file="generated.yaml")
            said = f"server: {verdict}; validate: {problems}"
            assert bool(problems) is bool(verdict.message), said
            accepted[not problems] += 1
            if any(problem.path in ("", "kind") for problem in problems):
                return
            named = {_named(path) for path in verdict.unknown | verdict.invalid}
            places = {_named(problem.path) for problem in problems}
            assert named <= places, said
            assert verdict.partial or named == places, said

        run()
    print(f"{kind}: {accepted[True]} accepted, {accepted[False]} refused")
    assert min(accepted[True], accepted[False]) >= examples / 10
