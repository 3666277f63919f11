"""The operator's table of stages, with one row for each. What the trainer reads, too, is in the contract's
:class:`~finetune_contract.Stage`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from finetune_contract import EvaluationSpec, ModelSource, Stage


class EarlierFinding(StrEnum):
    """Part of a stage's request that depends on an earlier stage, as ``finetune plan`` prints it."""

    CACHE_KEY = "key of the conversion in the cache (from Preflight)"
    CONVERTED = "place of the converted model (from Convert)"
    CHECKPOINT = "step of the checkpoint (from Train)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuResources:
    """Resources that the pod of a CPU stage requests."""

    cores: str
    memory_gib: int | None = None
    """None: computed from the model's size (``rendering/memory.py``)."""
    scratch_gib: int | None = None
    """None: computed from the model's size (``rendering/scratch.py``)."""
    limits_scratch: bool = False
    """Whether the pod limits ephemeral storage. A stage that fetches data or weights of any size has no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInfo:
    """One stage."""

    doing: str
    """Text of ``status.summary`` while the stage runs."""
    description: str
    """Text that ``finetune plan`` prints for the stage."""
    grace_seconds: int
    """Time between SIGTERM and SIGKILL. Training saves a checkpoint first; Spot nodes grant less in any case, planned
    maintenance grants all of it."""
    reads: frozenset[str]
    """Sections of the spec that affect the stage's request."""
    waits_for: tuple[EarlierFinding, ...] = ()
    cpu: CpuResources | None = None
    """None if the stage runs on TPU."""
    needs_libtpu: bool = False
    """Whether the stage computes on TPU or compiles for it. If not, it runs the profile's ``images.cpu``, if set."""
    uploads: bool = False
    """Whether the stage gets the tokens of the export's destinations."""

    @property
    def sized_by_model(self) -> bool:
        """Whether memory and disk depend on the model."""
        return self.cpu is not None and self.cpu.memory_gib is None


STAGES: Mapping[Stage, StageInfo] = {
    Stage.PREFLIGHT: StageInfo(
        doing="Checking the model and the data on CPU",
        description="reads model and data, counts rows and steps",
        grace_seconds=30,
        # Preflight checks what the later stages will do.
        reads=frozenset(
            {
                "cache",
                "checkpointing",
                "engineOverrides",
                "evaluation",
                "export",
                "huggingFaceTokenSecretRef",
                "preflight",
                "profiling",
                "resources",
            }
        ),
        cpu=CpuResources(cores="1", memory_gib=8, scratch_gib=16),
        needs_libtpu=True,
        uploads=True,
    ),
    Stage.CONVERT: StageInfo(
        doing="Converting the model and proving that it can be exported",
        description="to MaxText's format, and back as a proof that export will work",
        grace_seconds=30,
        reads=frozenset({"cache", "engineOverrides", "huggingFaceTokenSecretRef", "preflight"}),
        waits_for=(EarlierFinding.CACHE_KEY,),
        cpu=CpuResources(cores="2"),
    ),
    Stage.TRAIN: StageInfo(
        doing="Training",
        description="the fine-tuning",
        grace_seconds=300,
        reads=frozenset(
            {
                "cache",
                "checkpointing",
                "engineOverrides",
                "evaluation",
                "huggingFaceTokenSecretRef",
                "profiling",
                "resources",
            }
        ),
        waits_for=(EarlierFinding.CONVERTED,),
        needs_libtpu=True,
    ),
    Stage.EVALUATE: StageInfo(
        doing="Evaluating",
        description="loss and answers, before and after",
        grace_seconds=60,
        reads=frozenset({"cache", "engineOverrides", "evaluation", "huggingFaceTokenSecretRef", "resources"}),
        waits_for=(EarlierFinding.CONVERTED, EarlierFinding.CHECKPOINT),
        needs_libtpu=True,
    ),
    Stage.EXPORT: StageInfo(
        doing="Exporting the tuned model",
        description="to Hugging Face format, checked",
        grace_seconds=60,
        reads=frozenset({"engineOverrides", "export", "huggingFaceTokenSecretRef"}),
        waits_for=(EarlierFinding.CONVERTED, EarlierFinding.CHECKPOINT),
        cpu=CpuResources(cores="2", limits_scratch=True),
        uploads=True,
    ),
}


def stages_of(model: ModelSource, evaluation: EvaluationSpec) -> tuple[Stage, ...]:
    """Returns the stages of a job in order; Convert and Evaluate only if they have something to do."""
    idle = set()
    if model.orbax is not None:
        idle.add(Stage.CONVERT)
    if not (evaluation.prompts or evaluation.datasets or evaluation.benchmarks or evaluation.gates):
        idle.add(Stage.EVALUATE)
    return tuple(stage for stage in Stage if stage not in idle)
