"""``finetune validate`` and the API server judge generated manifests alike."""

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from finetune_operator.cli.manifests.validate import validate_text
from finetune_operator.cluster.port import ClusterError
from tests.doubles.local_cluster import LocalCluster
from tests.fuzz.specs import JOB, JOB_LEAVES, PROFILE, PROFILE_LEAVES, Document, changed

GROUP = "/apis/tpu-finetune.dev/v1alpha1"
KINDS = {"jobs": (JOB, JOB_LEAVES), "profiles": (PROFILE, PROFILE_LEAVES)}


def refusal(cluster: LocalCluster, document: Document) -> str:
    """What the API server says when it refuses to create the document; empty if it takes it."""
    namespace = document["metadata"].get("namespace")
    path = f"{GROUP}/namespaces/{namespace}/finetunejobs" if namespace else f"{GROUP}/finetuneprofiles"
    try:
        cluster.create(f"{path}?dryRun=All&fieldValidation=Strict", document)
    except ClusterError as error:
        if error.status in (400, 422):
            return str(error)
        raise
    return ""


@pytest.mark.timeout(0)
@pytest.mark.parametrize("examples", [200, pytest.param(5000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", KINDS)
def test_validate_takes_what_the_api_server_takes(
    cluster: LocalCluster, namespace: str, kind: str, examples: int
) -> None:
    base, fields = KINDS[kind]
    taken: Counter[bool] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(changed(base, fields, 4))
    def run(document: Document) -> None:
        if "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = namespace
        refused = refusal(cluster, document)
        problems = validate_text(json.dumps(document), file="generated.json")
        assert bool(problems) is bool(refused), f"server: {refused or 'taken'}; validate: {problems}"
        taken[not refused] += 1

    run()
    print(f"{kind}: {taken[True]} taken, {taken[False]} refused")
    assert min(taken[True], taken[False]) >= examples / 20
