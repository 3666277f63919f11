"""The options of a cluster with Kueue or fake nodes, before any of them runs."""

import base64
from pathlib import Path

import pytest

from devcluster.__main__ import main
from devcluster.layout import StateFolder
from devcluster.webhooks import with_url_clients
from tests.doubles.fakenodes import manifest, tpu_pool


def test_webhooks_are_called_on_this_machine_and_trusted_by_our_authority(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.pki.mkdir()
    (state.pki / "ca.crt").write_text("the authority")
    service = {"name": "webhook-service", "namespace": "system", "path": "/mutate-it"}
    hook = {"name": "m.kb.io", "failurePolicy": "Fail", "clientConfig": {"service": service}}
    found = {
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "mutating"},
        "webhooks": [hook],
    }
    (made,) = with_url_clients(state, [found], prefix="kueue", port=9443)
    assert made["metadata"] == {"name": "kueue-mutating"}
    assert made["webhooks"] == [
        {
            "name": "m.kb.io",
            "failurePolicy": "Fail",
            "clientConfig": {
                "url": "https://127.0.0.1:9443/mutate-it",
                "caBundle": base64.b64encode(b"the authority").decode(),
            },
        }
    ]


def test_a_fake_pool_shows_what_gkes_nodes_show() -> None:
    pool = tpu_pool(
        "pool",
        accelerator="tpu-v6e-slice",
        topology="4x4",
        machine_type="ct6e-standard-4t",
        hosts=4,
        chips_per_host=4,
        labels={"team": "a"},
    )
    assert [node.name for node in pool] == ["pool-0", "pool-1", "pool-2", "pool-3"]
    made = manifest(pool[0])
    assert made["metadata"]["annotations"] == {"kwok.x-k8s.io/node": "fake"}
    assert made["spec"]["taints"] == [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]
    assert made["status"]["allocatable"]["google.com/tpu"] == "4"
    labels = made["metadata"]["labels"]
    assert (
        labels
        | {
            "cloud.google.com/gke-nodepool": "pool",
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            "cloud.google.com/gke-tpu-topology": "4x4",
            "node.kubernetes.io/instance-type": "ct6e-standard-4t",
            "team": "a",
        }
        == labels
    )


def test_a_component_that_there_is_not_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--with", "kueu"]) == 1
    assert "kueu" in capsys.readouterr().err
