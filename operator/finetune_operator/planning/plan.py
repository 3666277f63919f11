"""The plan: everything about a job that rendering and status need, resolved."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune_contract import (
    CacheLayout,
    CheckpointPolicy,
    ContractVersion,
    ConvertManifest,
    DataSpec,
    EvaluateOutcome,
    EvaluationSpec,
    ExportSpec,
    HyperparametersSpec,
    JobIdentity,
    MemoryCheckSpec,
    MeshSpec,
    MethodSpec,
    ModelSource,
    PreflightOutcome,
    ProfilingSpec,
    RunFolder,
    SmokeSpec,
    Stage,
    TrainOutcome,
)
from finetune_operator.planning.budget import SpendingLimits
from finetune_operator.planning.limits import ResolvedLimit
from finetune_operator.planning.pathways import Pathways
from finetune_operator.planning.queueing import Queues
from finetune_operator.planning.stages import STAGES
from finetune_operator.planning.topology import (
    FlavorTerms,
    Placement,
)

type Object = Mapping[str, Any]

#: What never changes after admission; the rest of a spec is read when an attempt is created.
IDENTITY = ("model", "datasets", "method", "hyperparameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuNodes:
    """Nodes for the stages on CPU."""

    node_selector: Mapping[str, str]
    tolerations: tuple[Object, ...]
    max_memory: str | None
    max_ephemeral_storage: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAdditions:
    """What the profile adds to every pod, and what it grants those that hold chips."""

    env: tuple[Object, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    host_network: bool
    privileged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How many attempts may end badly, by class, before the job fails."""

    preemptions: int
    infrastructure: int
    user: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Seconds; None: no limit."""

    active: int | None
    """Running, over all attempts."""
    pre_running: int
    """From quota, or a restart, to running pods: for each kind of capacity, and for a stage on CPU."""
    startup: int
    """From running pods to the first step of training."""
    no_step: int
    """From one step to the next."""
    evaluate: int
    """Of one attempt at Evaluate, which reports no steps and holds a slice."""
    cpu_stage: int
    """Of one attempt at a stage on CPU."""
    blind: int | None
    """Running while the run folder alone cannot be read."""
    child_ttl: int | None
    """From the job's end to the deletion of its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What earlier stages found out."""

    preflight: PreflightOutcome | None = None
    converted: ConvertManifest | None = None
    reconvert: bool = False
    """A stage found the converted model damaged: Convert must not take it from the cache again."""
    train: TrainOutcome | None = None
    evaluated: EvaluateOutcome | None = None
    speaks: ContractVersion | None = None
    """The version of the contract that the trainer image speaks, as preflight reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One job, resolved."""

    job: JobIdentity
    owner: Object
    """Owner reference for children."""
    digest: str
    """sha256 of the stored plan, which JobSets and the status carry."""
    profile_name: str
    profile_hash: str
    spec_hash: str
    """Of the merged spec, without what only says whether and when to run."""
    asked: Mapping[Stage, str]
    """By stage: a digest of what job and profile ask of it (:mod:`.stage_digests`)."""
    contract: ContractVersion
    """The version of the contract that the trainer image is taken to speak before preflight has reported it."""
    stages: tuple[Stage, ...]
    """In order; Convert and Evaluate only where they have something to do."""
    placement: Placement
    flavors: Mapping[str, FlavorTerms]
    """All of the profile's, by name: an earlier attempt may have run on another one."""
    mesh: MeshSpec
    pathways: Pathways | None
    """None: the controller is McJAX."""
    model: ModelSource
    lineage: Object | None
    """The job that has made the model: name, uid, base, step, digest; None: no job has."""
    data: DataSpec
    method: MethodSpec
    hyperparameters: HyperparametersSpec
    checkpointing: CheckpointPolicy
    evaluation: EvaluationSpec
    export: ExportSpec
    exported_checkpoint: str
    """Best or Last; Best where nothing was asked for and training measures which is best."""
    on_gate_failure: str
    """Skip or Export."""
    export_proof: bool
    profiling: ProfilingSpec | None
    smoke: SmokeSpec | None
    """None: nothing is profiled."""
    memory: MemoryCheckSpec | None
    """What preflight proves of it; None: nothing."""
    use_cache: str
    engine_overrides: Mapping[str, str]
    recovery: RetryLimits
    budget: SpendingLimits
    limits: TimeLimits
    run_folder: RunFolder
    resumes: bool
    """It is another job's, in which this one goes on."""
    cache: CacheLayout
    programs: str
    """Folder of compiled programs (JAX's persistent compilation cache), of this namespace alone."""
    image: str
    cpu_image: str | None
    """Of Convert and Export; None: ``image``, which every other stage runs."""
    service_account_tpu: str
    service_account_cpu: str
    hub_token: tuple[str, str] | None
    """Name and key of the Secret; never its value."""
    upload_tokens: Mapping[str, tuple[str, str]]
    """The same of each hub destination, by environment variable."""
    cpu_pool: CpuNodes
    queues: Queues
    pod: PodAdditions
    currency: str | None
    owner_of_profile: Object
    """Whom to ask: team and contact, as far as the profile says."""
    bounds: tuple[ResolvedLimit, ...]
    """The profile's ``constraints.limits``."""
    plan_only: bool

    def image_of(self, stage: Stage) -> str:
        if self.cpu_image and not STAGES[stage].needs_libtpu:
            return self.cpu_image
        return self.image

    @property
    def chips(self) -> int:
        return self.placement.shape.chips * self.mesh.slices

    @property
    def reads_hub(self) -> bool:
        """Whether any stage's model or data comes from the hub."""
        evaluated = (dataset.source for dataset in self.evaluation.datasets)
        sources = (self.model, self.model.tokenizer, *self.data.train, *self.data.validation, *evaluated)
        return any(source is not None and source.hugging_face is not None for source in sources) or any(
            benchmark.uri is None for benchmark in self.evaluation.benchmarks
        )
