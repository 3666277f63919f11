"""The programs of the Evaluate stage, compiled for a TPU slice that is not there: shapes only, no weights."""

import re
from typing import Any

from flax import nnx
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh
from maxtext.utils import model_creation_utils

from finetune_trainer.compiled.compile_protocol import Answer, CompileSuccess, MemoryExceeded, SliceProgram
from finetune_trainer.compiled.step import batch_shapes, reference_logp_shapes, traced
from finetune_trainer.engine.lora import require_divisible, with_lora
from finetune_trainer.engine.sharding import mesh_context
from finetune_trainer.evaluation.generate import Generator
from finetune_trainer.evaluation.likelihood import Likelihood
from finetune_trainer.evaluation.loss import LossMeter
from finetune_trainer.evaluation.models import LoadedModel
from finetune_trainer.evaluation.placement import DeviceRowCapacity
from finetune_trainer.evaluation.sampling import Sampling
from finetune_trainer.methods import method_of
from finetune_trainer.methods.objectives import ReferenceModel, SftLoss

#: The compiler has two messages: needed memory first, then available memory.
_EXHAUSTED = re.compile(
    r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"
    r"|Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class EvaluationPrograms:
    """One model as the Evaluate stage loads it."""

    def __init__(
        self,
        config: Any,
        mesh: Mesh,
        row_capacity: DeviceRowCapacity,
        *,
        adapter: bool,
        end_ids: frozenset[int],
    ) -> None:
        """``config`` is MaxText's. ``adapter``: whether to add LoRA's, if the request trains one.

        ``end_ids``: tokens that end an answer.
        """
        self._row_capacity, self._end_ids = row_capacity, end_ids
        adapted = adapter and config.lora.enable_lora

        def build() -> Any:
            model = model_creation_utils.get_nnx_create_model_fn(config, mesh)()
            require_divisible(nnx.state(model), mesh)
            if adapted:
                model = with_lora(model, mesh, config)
            nnx.pop(model, nnx.Intermediate)
            return model

        self._loaded = LoadedModel(model=traced(build, config, mesh), config=config, mesh=mesh)

    def answer(self, program: SliceProgram, limit: int) -> Answer:
        """Compiles with as many rows as fit, as the stage finds them. ``limit``: bytes of a device."""
        match program.kind:
            case "Generate":
                generator = self.generator(program)
                return self._most(generator.rows(program.width, program.count), limit, program, generator)
            case "Likelihood":
                likelihood = Likelihood(
                    self._loaded, row_capacity=self._row_capacity, longest=program.longest
                )
                return self._most(likelihood.rows(program.width, program.count), limit, program, likelihood)
            case _:
                return compile_within(self._lower(program), limit)

    def _most(self, rows: int, limit: int, program: SliceProgram, of: Generator | Likelihood) -> Answer:
        while True:
            with self._inside():
                answer = compile_within(of.lowered(program.width, rows), limit)
            if isinstance(answer, MemoryExceeded) and rows > self._row_capacity.groups:
                rows //= 2
                continue
            return answer.model_copy(update={"rows": rows}) if isinstance(answer, CompileSuccess) else answer

    def generator(self, program: SliceProgram) -> Generator:
        """The stage's generator, with the sampling that ``program`` specifies."""
        sampling = Sampling(
            max_new_tokens=program.new_tokens,
            temperature=program.temperature,
            top_k=program.top_k,
            seed=self._row_capacity.request.hyperparameters.seed,
        )
        return Generator(
            self._loaded,
            sampling,
            end_ids=self._end_ids,
            row_capacity=self._row_capacity,
            longest=program.longest,
        )

    def _lower(self, program: SliceProgram) -> Any:
        loaded, request = self._loaded, self._row_capacity.request
        objective = method_of(request.method).objective(loaded.config)
        batch = batch_shapes(loaded.config, loaded.mesh, request, parts=1)
        with self._inside():
            if program.kind == "Reference":
                return ReferenceModel.itself(loaded.model, loaded.mesh).lowered(batch)
            if program.kind == "TextLoss":
                objective = SftLoss(config=loaded.config)
                batch = batch_shapes(loaded.config, loaded.mesh, request, parts=1, pairs=False)
            if objective.relative:
                batch |= reference_logp_shapes(batch)
            return LossMeter(loaded.model, loaded.config, loaded.mesh, objective).lowered(loaded.model, batch)

    def _inside(self) -> Any:
        return mesh_context(self._loaded.config, self._loaded.mesh)


def compile_within(
    lowered: Any, limit: int, *, held: int | None = None, beside: int = 0
) -> CompileSuccess | MemoryExceeded:
    """Compiles a program and compares its memory with the limit.

    ``held``: bytes on each device meanwhile, including the program's arguments. ``beside``: bytes without them, if
    ``held`` is None. Raises JaxRuntimeError if the compiler refuses for a reason other than memory.
    """
    try:
        memory = lowered.compile().memory_analysis()
    except JaxRuntimeError as error:
        if not lacks_memory(error):
            raise
        needed = needed_bytes(str(error))
        return MemoryExceeded(
            needed_bytes=needed and needed + beside, limit_bytes=limit, arguments_bytes=held or beside
        )
    arguments = memory.argument_size_in_bytes
    others = beside if held is None else max(0, held - arguments)
    peak, arguments = memory.peak_memory_in_bytes + others, arguments + beside
    if peak > limit:
        return MemoryExceeded(needed_bytes=peak, limit_bytes=limit, arguments_bytes=arguments)
    return CompileSuccess(
        peak_bytes=peak,
        limit_bytes=limit,
        arguments_bytes=arguments,
        temporaries_bytes=memory.temp_size_in_bytes,
    )


def lacks_memory(error: JaxRuntimeError) -> bool:
    """Whether the program needs more than the device's memory.

    The memory of a kernel, which its blocks decide, does not count.
    """
    return "RESOURCE_EXHAUSTED" in str(error) and "vmem" not in str(error).lower()


def needed_bytes(message: str) -> int | None:
    """Needed bytes from ``... HLO temporaries (318.68G) exceeds available HBM (31.24G)`` and the like.

    None if the message does not state them.
    """
    said = parse_exhausted_bytes(message)
    return said[0] if said else None


def parse_exhausted_bytes(message: str) -> tuple[int, int] | None:
    """Needed and available bytes from the compiler's message; None if it does not state them."""
    match = _EXHAUSTED.search(message)
    if match is None:
        return None
    needed, unit, available, other = (each for each in match.groups() if each is not None)
    return int(float(needed) * _UNITS[unit]), int(float(available) * _UNITS[other])
