"""The manifests that serve an export: their contents, and the machine that they request."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_trainer import families
from finetune_trainer.export.serving import KINDS, ServedModel, choose, write
from tests import snapshots
from tests.doubles.tiny_models import TinyModelSpec, config_of

GOLDEN = Path(__file__).parent / "golden/serving"
#: Sizes of published models: hidden, layers, heads, KV heads, head_dim, intermediate, vocabulary, context.
SIZES = {
    "0.6B": (1024, 28, 16, 8, 128, 3072, 151936, 40960),
    "8B": (4096, 36, 32, 8, 128, 12288, 151936, 40960),
    "32B": (5120, 64, 64, 8, 128, 25600, 151936, 40960),
    "9 heads": (576, 30, 9, 3, 64, 1536, 49152, 2048),
    "24 heads, 20B": (6144, 44, 24, 8, 128, 24576, 128256, 8192),
    "405B": (16384, 126, 128, 8, 128, 53248, 128256, 131072),
}


def served(size: str, **changes: Any) -> ServedModel:
    hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, context = SIZES[size]
    spec = TinyModelSpec(
        hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim, intermediate=intermediate,
        vocab=vocab, context=context,
    )  # fmt: skip
    told: dict[str, Any] = {
        "name": "support-bot",
        "namespace": "team-a",
        "uri": "gs://models/bots/support-bot",
        "service_account": "ft-cpu",
        "dtype": "BF16",
        "plan": families.resolve(config_of(spec)),
        **changes,
    }
    return ServedModel(**told)


def test_manifests_are_these(tmp_path: Path) -> None:
    write(tmp_path, served("8B"))
    files = sorted((tmp_path / "serving").iterdir())
    assert [path.name for path in files] == ["gpu.yaml", "tpu.yaml"]
    for path in files:
        snapshots.check(GOLDEN / path.name, path.read_text())


@pytest.mark.parametrize(
    ("size", "dtype", "tpu", "gpu"),
    [
        ("0.6B", "BF16", "1x1", "1 x nvidia-l4"),
        ("8B", "BF16", "1x1", "2 x nvidia-l4"),
        ("8B", "FP32", "2x2", "4 x nvidia-l4"),
        ("32B", "BF16", "2x2", "4 x nvidia-l4"),
        ("9 heads", "BF16", "1x1", "1 x nvidia-l4"),
        ("24 heads, 20B", "FP32", "2x2", "8 x nvidia-l4"),
        ("405B", "BF16", None, None),
    ],
)
def test_the_smallest_machine_is_taken_on_which_model_and_cache_fit(
    size: str, dtype: str, tpu: str | None, gpu: str | None
) -> None:
    asked = served(size, dtype=dtype)
    slice_, cards = choose(KINDS["tpu"], asked), choose(KINDS["gpu"], asked)
    assert (slice_ and slice_.selector["cloud.google.com/gke-tpu-topology"]) == tpu
    assert (cards and f"{cards.chips} x {cards.selector['cloud.google.com/gke-accelerator']}") == gpu


def test_a_model_too_large_for_one_machine_has_no_manifest(tmp_path: Path) -> None:
    write(tmp_path, served("405B"))
    assert not (tmp_path / "serving").exists()


def test_attention_heads_are_not_divided_unevenly() -> None:
    small = served("9 heads")
    deep = replace(small, plan=replace(small.plan, layers=small.plan.layers * 500))
    assert [choose(kind, deep) for kind in KINDS.values()] == [None, None]


def test_a_folder_of_a_local_cluster_is_mounted_as_it_lies(tmp_path: Path) -> None:
    write(tmp_path, served("0.6B", uri="file:///data/export/model"))
    deployment, _ = yaml.safe_load_all((tmp_path / "serving/gpu.yaml").read_text())
    pod = deployment["spec"]["template"]
    assert pod["spec"]["volumes"][0] == {
        "name": "model", "hostPath": {"path": "/data/export/model", "type": "Directory"}
    }  # fmt: skip
    assert "annotations" not in pod["metadata"]
