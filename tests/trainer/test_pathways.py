"""Training under Pathways: another storage layout, MaxText's single controller, and JAX's proxy.

The tests have no Pathways server, so training itself runs on CPU."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from finetune_contract import ConvertManifest, MeshSpec
from finetune_trainer.checkpoints.layout import OCDBT, PLAIN, layout_for
from finetune_trainer.conversion import fingerprint
from finetune_trainer.engine import overrides
from finetune_trainer.errors import StageError
from finetune_trainer.families import read
from finetune_trainer.hub.models import fetch_model
from finetune_trainer.storage import open_store
from finetune_trainer.training import settings
from tests.trainer.models import qwen3
from tests.trainer.requests import request
from tests.trainer.stages import Stages

PATHWAYS = {"controller": "Pathways"}


@pytest.fixture(scope="module")
def plain(stages: Stages) -> ConvertManifest:
    """The Qwen3, converted for Pathways."""
    details = stages.run("Convert", "plain-conversion", mesh=PATHWAYS).details
    assert details is not None
    assert details.kind == "Convert"
    return details.manifest


def mesh(controller: str) -> MeshSpec:
    return MeshSpec.model_validate({"hosts": 4, "chips_per_host": 4, "fsdp": 16, "controller": controller})


def test_a_converted_model_is_another_one_for_each_controller(tmp_path: Path) -> None:
    plan = read(qwen3(tmp_path))
    source = request(tmp_path, "Preflight").model.model_copy(update={"uri": f"file://{tmp_path}/qwen3"})
    model = fetch_model(source, tmp_path / "scratch", open_store(), weights=False)
    assert (layout_for(mesh("McJAX")), layout_for(mesh("Pathways"))) == (OCDBT, PLAIN)
    one, other = (fingerprint.of_model(model, plan, layout) for layout in (OCDBT, PLAIN))
    assert one.value != other.value
    assert {name for name in one.inputs if one.inputs[name] != other.inputs[name]} == {"layout"}
    assert model.identity(plan, PLAIN).layout == other.inputs["layout"]


def test_the_conversion_is_proven_and_lies_in_files_of_its_own(
    plain: ConvertManifest, converted: str
) -> None:
    assert plain.export_proven
    assert plain.inputs["layout"] == PLAIN.name
    items = Path(plain.items.removeprefix("file://"))
    assert not list(items.rglob("manifest.ocdbt"))
    assert len(list(items.rglob(".zarray"))) > 10  # zarr 2 writes these, zarr 3 writes zarr.json
    assert not list(items.rglob("zarr.json"))
    assert list(Path(converted.removeprefix("file://")).rglob("manifest.ocdbt"))


@pytest.mark.parametrize(
    "method",
    [
        pytest.param({}, id="full"),
        pytest.param({"lora": {"rank": 4, "alpha": 8.0}}, id="lora", marks=pytest.mark.thorough),
    ],
)
def test_training_from_it_is_the_same_training(
    stages: Stages, plain: ConvertManifest, converted: str, method: dict[str, object]
) -> None:
    run = f"pathways-{'lora' if method else 'full'}"
    trained = stages.run("Train", run, method=method, mesh=PATHWAYS, converted=plain.items).details
    stages.run("Train", f"{run}-mcjax", method=method, converted=converted)
    assert trained is not None
    assert trained.kind == "Train"
    assert stages.losses(run) == stages.losses(f"{run}-mcjax")
    evaluated = stages.run(
        "Evaluate", run, method=method, mesh=PATHWAYS, converted=plain.items, train_step=20
    ).details
    assert evaluated is not None
    assert evaluated.kind == "Evaluate"
    assert evaluated.tuned is not None
    assert evaluated.tuned.loss == trained.evaluation_loss


def test_preflight_refuses_servers_for_another_jax(stages: Stages) -> None:
    refused = stages.run("Preflight", "other-jax", mesh=PATHWAYS, pathways_jax="0.9.0")
    assert refused.exit_code == 64
    assert refused.failure is not None
    assert refused.failure.reason == "PathwaysJaxMismatch"
    assert "0.9.0" in refused.failure.actual
    assert version("jax") in refused.failure.expected
    passed = stages.run("Preflight", "same-jax", mesh=PATHWAYS, pathways_jax=version("jax")).details
    assert passed is not None
    assert passed.kind == "Preflight"
    assert passed.model.layout == PLAIN.name


@pytest.mark.parametrize(("controller", "single"), [("McJAX", False), ("Pathways", True)])
def test_the_controller_decides_maxtexts_settings(tmp_path: Path, controller: str, single: bool) -> None:
    made = settings.settings(
        request(tmp_path, "Train", mesh={"controller": controller}),
        read(qwen3(tmp_path)),
        steps=9,
        platform="tpu",
        output="/x",
    )
    assert made["enable_single_controller"] is single
    assert made["checkpoint_storage_use_ocdbt"] is not single
    assert made["checkpoint_storage_use_zarr3"] is not single


@pytest.mark.parametrize(
    "key", ["enable_single_controller", "checkpoint_storage_use_ocdbt", "checkpoint_storage_use_zarr3"]
)
def test_what_the_controller_decides_is_not_to_be_overridden(key: str) -> None:
    with pytest.raises(StageError, match=r"set spec\.resources\.controller"):
        overrides.parse({key: "true"})


_PREPARE = """
import sys
from pathlib import Path
from finetune_trainer.engine import maxtext
from finetune_trainer.families import read
maxtext.prepare(read(Path(sys.argv[1])))
from jax._src import xla_bridge
print("proxy" in xla_bridge._backend_factories, xla_bridge.backends_are_initialized())
"""


def test_jax_knows_the_proxy_before_a_device_is_asked_for(tmp_path: Path) -> None:
    model = qwen3(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _PREPARE, str(model)],
        env={"JAX_PLATFORMS": "proxy", "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["True", "False"], done.stderr
