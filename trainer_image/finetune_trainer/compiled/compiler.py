"""Answers compile requests with libtpu. It uses the process's JAX: nothing else may run in that process."""

import re
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.errors import JaxRuntimeError
from jax.experimental.topologies import get_topology_desc
from jax.sharding import SingleDeviceSharding

from finetune_contract import StageRequest
from finetune_contract.tpu import families
from finetune_trainer.compiled.compile_protocol import (
    Answer,
    Candidate,
    CompileFailure,
    MemoryExceeded,
)
from finetune_trainer.compiled.cost import step_cost
from finetune_trainer.compiled.evaluation_programs import (
    EvaluationPrograms,
    compile_within,
    parse_exhausted_bytes,
)
from finetune_trainer.compiled.step import AbstractTraining, mesh_of
from finetune_trainer.engine import maxtext
from finetune_trainer.engine.chips import usable_bytes
from finetune_trainer.engine.lora import IndivisibleShapeError
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation.placement import DeviceRowCapacity
from finetune_trainer.families import ModelPlan
from finetune_trainer.training.engine_config import engine_settings, evaluation_settings

#: Bounds of a host's chips, by their number.
_HOSTS = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
#: The compiler's messages about programs that it never accepts: a shape, an operation, a kernel's blocks.
_CERTAIN = re.compile(
    r"^(?!.*(?i:unknown|unrecognized|no such).{0,40}(?i:flag|option))"
    r".*(INVALID_ARGUMENT|UNIMPLEMENTED|FAILED_PRECONDITION|Mosaic|(?i:vmem))",
    re.DOTALL,
)
#: More bytes than any chip has: the refusal says how much there is.
_TOO_MUCH = 2**39


class Target(Protocol):
    """What programs are compiled for."""

    platform: str
    """JAX's name of the platform: tpu, cpu."""

    def devices(self, candidate: Candidate) -> Any:
        """The devices of the candidate's mesh. Raises ValueError for what the compiler does not know."""

    def limit(self, devices: Any) -> int:
        """Bytes of one device that a program may use."""

    def settings(self, candidate: Candidate) -> Mapping[str, Any]:
        """MaxText's settings, in addition to those of the stage."""


class TopologyTarget:
    """The candidate's TPU slice, without any chip."""

    platform = "tpu"

    def devices(self, candidate: Candidate) -> Any:
        return devices_of(candidate)

    def limit(self, devices: Any) -> int:
        return memory_limit(devices[0])

    def settings(self, candidate: Candidate) -> Mapping[str, Any]:
        return {
            "internal_compile": True,
            "internal_compile_num_devices": candidate.mesh.devices,
            "compile_topology": _topology(candidate),
            "compile_topology_num_slices": candidate.mesh.slices,
        }


class Compiler:
    """Compiles for one model and request; ``engine.prepare`` must have been called."""

    def __init__(
        self,
        plan: ModelPlan,
        request: StageRequest,
        *,
        end_ids: frozenset[int] = frozenset({0}),
        target: Target | None = None,
    ) -> None:
        """``request`` and ``end_ids``: see ``CompilerConfig``. ``target``: defaults to the slice that a candidate
        names."""
        self._plan, self._request, self._end_ids = plan, request, end_ids
        self._target = target or TopologyTarget()
        self._loading: dict[str, Answer] = {}
        """Answers for loading a quantized base, by place and mesh."""

    def answer(self, candidate: Candidate) -> Answer:
        """Compiles the candidate, in about a minute. Never raises for what the candidate asks."""
        try:
            devices = self._target.devices(candidate)
            limit = self._target.limit(devices)
        except (JaxRuntimeError, ValueError) as error:  # a slice that this compiler does not know
            return _refused(error, certain=False)
        try:
            return self._answer(candidate, devices, limit)
        except JaxRuntimeError as error:
            return _refused(error, certain=bool(_CERTAIN.search(str(error))))
        except (
            StageError,
            ValueError,
            TypeError,
            NotImplementedError,
        ) as error:  # errors with which JAX and MaxText refuse shapes
            return _refused(error, certain=True)
        except Exception as error:  # noqa: BLE001 - an error of the engine must not end the search over other programs
            return _refused(error, certain=False)

    def _answer(self, candidate: Candidate, devices: Any, limit: int) -> Answer:
        match candidate.program.kind:
            case "Train":
                return self._step(candidate, devices, limit)
            case "TrainingLoss":
                return self._training_loss(candidate, devices, limit)
            case _:
                programs = self.evaluation(candidate, devices, adapter=candidate.program.adapter)
                return programs.answer(candidate.program, limit)

    def _step(self, candidate: Candidate, devices: Any, limit: int) -> Answer:
        """Answers for the step, and for the pass of a reference model before it.

        The arguments of one program stay in memory while the other runs.
        """
        training = self._training(candidate, devices)
        kept = training.kept_bytes
        if (loading := self._loads(training, candidate, limit)) is not None:
            return loading
        step = compile_within(training.lower_step(), limit, beside=kept)
        if isinstance(step, MemoryExceeded):
            return step.model_copy(update={"arguments_bytes": training.arguments_bytes + kept})
        peak, temporaries = step.peak_bytes, step.temporaries_bytes
        if (lowered := training.lower_reference()) is not None:
            reference = compile_within(lowered, limit, held=step.arguments_bytes)
            if isinstance(reference, MemoryExceeded):
                return reference.model_copy(update={"arguments_bytes": step.arguments_bytes})
            peak = max(peak, reference.peak_bytes)
            temporaries = max(temporaries, reference.temporaries_bytes)
        cost = step_cost(self._plan, self._request, candidate)
        return step.model_copy(
            update={
                "peak_bytes": peak,
                "temporaries_bytes": temporaries,
                "flops": cost.flops,
                "hbm_bytes": cost.hbm_bytes,
                "network_bytes": cost.network_bytes,
                "step_seconds": cost.seconds(candidate.slice.family),
            }
        )

    def _training_loss(self, candidate: Candidate, devices: Any, limit: int) -> Answer:
        training = self._training(candidate, devices)
        held = training.arguments_bytes + training.kept_bytes
        reference = training.lower_validation_reference()
        if reference is not None:
            answer = compile_within(reference, limit, held=held)
            if isinstance(answer, MemoryExceeded):
                return answer
        return compile_within(training.lower_loss(), limit, held=held)

    def _loads(self, training: AbstractTraining, candidate: Candidate, limit: int) -> MemoryExceeded | None:
        """Why the devices do not hold the base while it is quantized; None if they do, or it is not quantized.

        A base that does not fit as a whole cannot be trained with another policy either.
        """
        key = f"{candidate.place} {candidate.mesh.to_json()}"
        if key not in self._loading and (lowered := training.lower_loading()) is not None:
            self._loading[key] = compile_within(lowered, limit)
        answer = self._loading.get(key)
        if not isinstance(answer, MemoryExceeded):
            return None
        return answer.model_copy(update={"arguments_bytes": max(answer.needed_bytes or 0, limit + 1)})

    def evaluation(self, candidate: Candidate, devices: Any, *, adapter: bool) -> EvaluationPrograms:
        """The candidate's model as the Evaluate stage loads it."""
        row_capacity = DeviceRowCapacity.of(
            self._asked(candidate), self._plan, memory=usable_bytes(devices[0].device_kind)
        )
        made = evaluation_settings(
            row_capacity.request, self._plan, platform=self._target.platform, output=""
        )
        config = maxtext.configure(self._plan, maxtext.SFT, **made, **self._target.settings(candidate))
        return EvaluationPrograms(
            config, mesh_of(config, devices), row_capacity, adapter=adapter, end_ids=self._end_ids
        )

    def _asked(self, candidate: Candidate) -> StageRequest:
        hyperparameters = self._request.hyperparameters.model_copy(
            update={"global_batch_size": candidate.global_batch}
        )
        # the chips run the same program with either controller
        mesh = candidate.mesh.model_copy(update={"controller": "McJAX"})
        return self._request.model_copy(update={"mesh": mesh, "hyperparameters": hyperparameters})

    def _training(self, candidate: Candidate, devices: Any) -> AbstractTraining:
        config = self._configuration(candidate)
        return AbstractTraining(config, mesh_of(config, devices), self._asked(candidate))

    def _configuration(self, candidate: Candidate) -> Any:
        request = self._asked(candidate).model_copy(update={"tuning": candidate.tuning})
        steps = self._request.hyperparameters.steps or 1
        made = engine_settings(request, self._plan, steps=steps, platform=self._target.platform, output="")
        return maxtext.configure(self._plan, maxtext.SFT, **made, **self._target.settings(candidate))


def memory_limit(device: Any) -> int:
    """Bytes that a program may use on a compile-only device; the compiler keeps some of the chip for itself."""
    shape = jax.ShapeDtypeStruct((_TOO_MUCH,), jnp.int8, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(lambda x: x + 1).lower(shape).compile()
    except JaxRuntimeError as error:
        if said := parse_exhausted_bytes(str(error)):
            return said[1]
        raise
    raise ValueError(f"{device.device_kind} has more memory than {_TOO_MUCH} bytes")


def _topology(candidate: Candidate) -> str:
    return f"{candidate.slice.family}:{candidate.slice.topology}"


def devices_of(candidate: Candidate) -> Any:
    """Compile-only devices of the candidate's slice."""
    options: dict[str, Any] = {"num_slices": candidate.mesh.slices}
    if bounds := _HOSTS.get(candidate.mesh.chips_per_host):
        options["chips_per_host_bounds"] = bounds
    family = families().get(candidate.slice.family)
    if family is not None and family.compiler_chip_config is not None:
        options["chip_config_name"] = family.compiler_chip_config
    return get_topology_desc(_topology(candidate), platform="tpu", **options).devices


def _refused(error: Exception, *, certain: bool) -> CompileFailure:
    message = " ".join(str(error).split())[:500]
    return CompileFailure(message=message, certain=certain, of_mesh=isinstance(error, IndivisibleShapeError))
