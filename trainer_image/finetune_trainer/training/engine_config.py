"""MaxText's configuration for a request: base file, the model's settings, the request's, then the user's overrides."""

import json
import os
import re
from enum import Enum
from typing import Any

from finetune_contract import ExitCode, StageRequest
from finetune_trainer.engine import maxtext, overrides
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation.placement import DeviceRowCapacity
from finetune_trainer.families import ModelPlan
from finetune_trainer.process.redaction import Redactor
from finetune_trainer.storage import engine_path
from finetune_trainer.training.settings import settings

#: Names of settings that hold a credential, such as ``hf_access_token``.
_CREDENTIAL = re.compile(r"access_token|auth_token|api_key|secret|password|credential", re.IGNORECASE)


def training_config(
    request: StageRequest, plan: ModelPlan, *, steps: int, folder: str, parameters: str
) -> Any:
    """MaxText's configuration for the Train stage.

    ``folder`` is the URI of the run folder, and ``parameters`` an address as MaxText spells it.
    """
    import jax

    made = engine_settings(
        request,
        plan,
        steps=steps,
        platform=jax.default_backend(),
        output=engine_path(folder),
    )
    return maxtext.configure(plan, maxtext.SFT, **{**made, "load_parameters_path": parameters})


def settings_json(config: Any) -> str:
    """Every setting of MaxText's configuration by name, derived ones included, as JSON. Without credentials."""
    kept = {name: value for name, value in config.get_keys().items() if not _CREDENTIAL.search(name)}
    return Redactor(os.environ)(json.dumps(kept, default=_plain, indent=1, sort_keys=True))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else str(value)


def evaluation_config(
    row_capacity: DeviceRowCapacity, *, folder: str, parameters: str, adapter: str | None = None
) -> Any:
    """MaxText's configuration for the Evaluate stage.

    ``folder`` is the URI of the run folder; ``parameters`` and ``adapter`` are addresses as MaxText spells them.
    """
    import jax

    made = evaluation_settings(
        row_capacity.request,
        row_capacity.plan,
        platform=jax.default_backend(),
        output=engine_path(folder),
        adapter=adapter,
    )
    return maxtext.configure(row_capacity.plan, maxtext.SFT, **{**made, "load_parameters_path": parameters})


def evaluation_settings(
    request: StageRequest, plan: ModelPlan, *, platform: str, output: str, adapter: str | None = None
) -> dict[str, Any]:
    """The settings that determine the programs of the Evaluate stage.

    ``request`` is that of a ``DeviceRowCapacity``. Other arguments as for ``evaluation_config`` and ``settings``.
    """
    made = engine_settings(request, plan, steps=1, platform=platform, output=output)
    if request.method.lora is not None:
        # Only training holds the base quantized: evaluation measures what will be exported.
        whole = {"lora_weight_qtype": None, "lora_tile_size": None}
        made["lora"] = {**made["lora"], **whole, "lora_restore_path": adapter or ""}
    if made["attention"] == "flash":
        made["attention"] = (
            "autoselected"  # the same kernel, except for decoding, which flash attention does not support
        )
    # With vocabulary tiling a model returns no logits, which answers and likelihoods are computed from.
    made["num_vocab_tiling"] = 1
    # Regardless of what the job sets for the training mesh: this mesh may need it where that one does not.
    made["allow_split_physical_axes"] = platform != "cpu"
    return made


def require_devices(request: StageRequest) -> None:
    """Raises ``StageError`` 69 if the devices are not those of the requested mesh. Call ``engine.prepare`` first."""
    import jax

    mesh, found = request.mesh, jax.device_count()
    if found != mesh.devices:
        raise StageError(
            ExitCode.UNAVAILABLE, "DeviceCountMismatch", "JAX finds a different number of devices than the slice has",
            where=f"host {jax.process_index()}", actual=f"{found} {jax.default_backend()} devices",
            expected=f"{mesh.devices}, over all hosts",
            fix="The operator retries. If the error persists: chipsPerHost of the profile's flavor must be that of the "
            "node pool, and nothing else on the nodes may use chips.",
        )  # fmt: skip


def engine_settings(
    request: StageRequest, plan: ModelPlan, *, steps: int, platform: str, output: str
) -> dict[str, Any]:
    """The settings that determine the train step.

    The request's fields, then preflight's choices, then the user's overrides. Arguments as for ``settings``.
    """
    made = settings(request, plan, steps=steps, platform=platform, output=output)
    return {**made, **request.tuning, **overrides.parse(request.engine_overrides)}
