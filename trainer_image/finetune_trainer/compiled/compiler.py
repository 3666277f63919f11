"""Answers questions with libtpu. Holds the process's JAX: nothing else may run in it."""

import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.errors import JaxRuntimeError
from jax.experimental.topologies import get_topology_desc
from jax.sharding import SingleDeviceSharding

from finetune_contract import StageRequest
from finetune_trainer import engine
from finetune_trainer.compiled.chips import CHIPS, roofline
from finetune_trainer.compiled.cost import cost_of
from finetune_trainer.compiled.question import Answer, Candidate, Exceeded, Measured, NotCompiled
from finetune_trainer.compiled.step import Abstract, mesh_of
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.stages.engine_config import engine_settings

#: How the chips of a host lie, by their number.
_HOSTS = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
#: v4's two cores count as one device, as JAX has them on the machine itself; the others' do so by default.
_CHIP_CONFIGS = {"v4": "megacore"}
#: The compiler has two ways to tell: what is needed, then what there is.
_EXHAUSTED = re.compile(
    r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"
    r"|Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
#: More than any chip has: asked for, the compiler tells how much there is.
_TOO_MUCH = 2**39


class Compiler:
    """For one model and request; ``engine.prepare`` has been called."""

    def __init__(self, plan: ModelPlan, request: StageRequest) -> None:
        self._plan, self._request = plan, request

    def answer(self, candidate: Candidate) -> Answer:
        """Compiles it, a minute or so. Never raises for what the candidate asks."""
        try:
            config = self._configuration(candidate)
            devices = _devices(candidate)
            mesh = mesh_of(config, devices)
            limit = memory_limit(devices[0])
        except (StageError, JaxRuntimeError, ValueError) as error:
            return _refused(error)
        accumulation = self._request.hyperparameters.gradient_accumulation_steps
        try:
            training = Abstract(config, mesh, self._request.method, accumulation)
        except (ValueError, TypeError, NotImplementedError) as error:  # as JAX and MaxText refuse shapes
            return _refused(error)
        kept = training.kept_bytes
        held = training.arguments_bytes + kept
        try:
            step, reference = training.compile_step(), training.compile_reference()
        except JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                return _refused(error)
            needed = needed_bytes(str(error))
            return Exceeded(needed_bytes=needed and needed + kept, limit_bytes=limit, arguments_bytes=held)
        except (ValueError, TypeError, NotImplementedError) as error:
            return _refused(error)
        return _measured(step, reference, kept, limit, candidate.slice.family)

    def _configuration(self, candidate: Candidate) -> Any:
        hyperparameters = self._request.hyperparameters.model_copy(
            update={"global_batch_size": candidate.global_batch}
        )
        request = self._request.model_copy(
            update={
                # the chips run the same program, whoever drives them
                "mesh": candidate.mesh.model_copy(update={"controller": "McJAX"}),
                "hyperparameters": hyperparameters,
                "tuning": candidate.tuning,
            }
        )
        made = engine_settings(request, self._plan, steps=1, platform="tpu", output="")
        return engine.configure(
            self._plan,
            engine.SFT,
            **made,
            internal_compile=True,
            internal_compile_num_devices=candidate.mesh.devices,
            compile_topology=_topology(candidate),
            compile_topology_num_slices=candidate.mesh.slices,
        )


def memory_limit(device: Any) -> int:
    """Bytes that a program may use on a compile-only device; the compiler keeps some of the chip for itself."""
    shape = jax.ShapeDtypeStruct((_TOO_MUCH,), jnp.int8, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(lambda x: x + 1).lower(shape).compile()
    except JaxRuntimeError as error:
        if told := _told(str(error)):
            return told[1]
        raise
    raise ValueError(f"{device.device_kind} has more memory than {_TOO_MUCH} bytes")


def needed_bytes(message: str) -> int | None:
    """From ``… HLO temporaries (318.68G) exceeds available HBM (31.24G)`` and the like."""
    told = _told(message)
    return told[0] if told else None


def _told(message: str) -> tuple[int, int] | None:
    """Bytes that are needed, bytes that there are."""
    match = _EXHAUSTED.search(message)
    if match is None:
        return None
    needed, unit, available, other = (each for each in match.groups() if each is not None)
    return int(float(needed) * _UNITS[unit]), int(float(available) * _UNITS[other])


def _topology(candidate: Candidate) -> str:
    return f"{candidate.slice.family}:{candidate.slice.topology}"


def _devices(candidate: Candidate) -> Any:
    options: dict[str, Any] = {"num_slices": candidate.mesh.slices}
    if bounds := _HOSTS.get(candidate.mesh.chips_per_host):
        options["chips_per_host_bounds"] = bounds
    if config := _CHIP_CONFIGS.get(candidate.slice.family):
        options["chip_config_name"] = config
    return get_topology_desc(_topology(candidate), platform="tpu", **options).devices


def _measured(step: Any, reference: Any | None, kept: int, limit: int, family: str) -> Answer:
    """Of programs that run one after the other. What one is not given, but the other needs, stays where it is."""
    memory, cost = step.memory_analysis(), cost_of(step.as_text())
    held = memory.argument_size_in_bytes + kept
    peak, temporaries = memory.peak_memory_in_bytes + kept, memory.temp_size_in_bytes
    if reference is not None:
        before = reference.memory_analysis()
        peak = max(peak, before.peak_memory_in_bytes + held - before.argument_size_in_bytes)
        temporaries = max(temporaries, before.temp_size_in_bytes)
        cost += cost_of(reference.as_text())
    if peak > limit:
        return Exceeded(needed_bytes=peak, limit_bytes=limit, arguments_bytes=held)
    state = memory.argument_size_in_bytes + memory.output_size_in_bytes
    chip = CHIPS.get(family)
    interval = roofline(cost, state, chip) if chip else None
    return Measured(
        peak_bytes=peak,
        limit_bytes=limit,
        arguments_bytes=held,
        temporaries_bytes=temporaries,
        flops=cost.flops,
        hbm_bytes=cost.hbm_bytes,
        network_bytes=cost.network_bytes,
        step_seconds=(interval.low, interval.high) if interval else None,
    )


def _refused(error: Exception) -> NotCompiled:
    return NotCompiled(message=" ".join(str(error).split())[:500])
