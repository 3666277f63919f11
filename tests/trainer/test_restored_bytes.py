"""The bytes of a converted model that the hosts of a slice read: each host reads its own part of the model."""

from typing import Any

import pytest

from devcluster.gcs import client_environment
from finetune_contract import ConvertOutcome
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request
from tests.trainer.stages import Stages, result_of
from tests.trainer.storage_proxy import between
from tests.trainer.stores import BUCKET

HOSTS = 4
#: Slices of several MiB, as in a model of 0.6 billion parameters: a single request reads all ranges less than 1 MB
#: apart, so with smaller slices every host would read everything.
SPEC = TinyModelSpec(
    family="qwen3", layers=2, hidden=1024, heads=16, kv_heads=8, head_dim=128, intermediate=3072, vocab=4000
)


@pytest.mark.parametrize("controller", ["McJAX", "Pathways"])
def test_the_hosts_of_a_slice_read_the_model_once_among_them(
    stages: Stages, server: str, controller: str
) -> None:
    """This holds for the layouts of both controllers, with FSDP."""
    model = stages.root / "models/wide"
    if not model.exists():
        write_model(model, SPEC)
    name = f"restored-{controller}"
    changes: dict[str, Any] = {
        "model": {"uri": f"file://{model}"}, "cache": f"gs://{BUCKET}/{name}", "export_proof": False,
    }  # fmt: skip
    mesh = {"hosts": HOSTS, "chips_per_host": 1, "fsdp": HOSTS}
    convert = request(stages.root, "Convert", name, mesh={**mesh, "controller": controller}, **changes)
    running = stages.start(FINETUNE_REQUEST=convert.to_json(), **client_environment(server))
    assert running.wait() == 0, running.log[-4000:]
    result = result_of(convert)
    assert result is not None
    assert isinstance(result.details, ConvertOutcome)
    manifest = result.details.manifest
    with between(server) as proxy:
        restore = request(stages.root, "Train", name, mesh=mesh, converted=manifest.items, **changes)
        hosts = stages.hosts(restore, [("restored_alone",)] * HOSTS, **client_environment(proxy.url))
        assert [host.wait() for host in hosts] == [0] * HOSTS, "\n".join(host.log[-4000:] for host in hosts)
        assert proxy.read <= 1.1 * manifest.size_bytes


def test_a_conversion_commits_arrays_and_not_each_of_their_tensors(stages: Stages, server: str) -> None:
    """Cloud Storage accepts about one write per second to the same object, and OCDBT's manifest is one object."""
    layers = 10
    model = write_model(stages.root / "models/deep", TinyModelSpec(layers=layers))
    convert = request(
        stages.root, "Convert", "committed", model={"uri": f"file://{model}"},
        cache=f"gs://{BUCKET}/committed", export_proof=False,
    )  # fmt: skip
    with between(server) as proxy:
        running = stages.start(FINETUNE_REQUEST=convert.to_json(), **client_environment(proxy.url))
        assert running.wait() == 0, running.log[-4000:]
        commits = [each for each in proxy.answered if each.asked.body and "manifest.ocdbt" in each.asked.name]
    print(f"{len(commits)} commits")
    assert 0 < len(commits) < 7 * layers, "each layer has seven matrices alone"
