"""The plan: everything that rendering and the status need about a job, resolved."""

from collections.abc import Mapping
from dataclasses import dataclass

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
from finetune_operator.objects import Object
from finetune_operator.planning.budget import SpendingLimits
from finetune_operator.planning.defaulted import DefaultedCpuPool, DefaultedPodSettings, DefaultedRecovery
from finetune_operator.planning.policy.limits import ResolvedLimit
from finetune_operator.planning.queueing import Queues
from finetune_operator.planning.slices.pathways import Pathways
from finetune_operator.planning.slices.topology import (
    FlavorTerms,
    Placement,
)
from finetune_operator.planning.stages import STAGES

#: Sections that never change after admission; the rest of a spec is read when an attempt is created.
IDENTITY = ("model", "datasets", "method", "hyperparameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Time limits in seconds. None: no limit."""

    active: int | None
    """Running time over all attempts."""
    pre_running: int
    """From admitted quota, or a restart, to running pods; applies to each flavor and to CPU stages."""
    startup: int
    """From running pods to the first training step."""
    refused_pods: int
    """From an attempt's newest pod, while others are refused, to its end."""
    no_step: int
    """From one training step to the next."""
    evaluate: int
    """Duration of one attempt of Evaluate, which reports no steps and holds a slice."""
    cpu_stage: int
    """Duration of one attempt of a CPU stage."""
    blind: int | None
    """Running time during which only the run folder cannot be read."""
    child_ttl: int | None
    """From the end of the job to the deletion of its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Results of earlier stages. None: not available yet."""

    preflight: PreflightOutcome | None = None
    converted: ConvertManifest | None = None
    reconvert: bool = False
    """Whether a stage found the converted model damaged: Convert must then not take it from the cache."""
    train: TrainOutcome | None = None
    evaluated: EvaluateOutcome | None = None
    supports: ContractVersion | None = None
    """Version of the contract that the trainer image supports, as preflight reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One job with everything resolved."""

    job: JobIdentity
    owner: Object
    """Owner reference for the job's children."""
    digest: str
    """sha256 of the stored plan, which JobSets and the status record."""
    profile_name: str
    profile_hash: str
    spec_hash: str
    """Digest of the merged spec, without the fields that only control whether and when the job runs."""
    spec_digests: Mapping[Stage, str]
    """Digest of the request of job and profile for each stage (:func:`.plan_builder.stage_digests`)."""
    contract: ContractVersion
    """Version of the contract that the trainer image is assumed to support until preflight reports it."""
    stages: tuple[Stage, ...]
    """In order; Convert and Evaluate only if they have something to do."""
    placement: Placement
    flavors: Mapping[str, FlavorTerms]
    """All flavors of the profile by name: an earlier attempt may have run on another flavor."""
    mesh: MeshSpec
    pathways: Pathways | None
    """None if the controller is McJAX."""
    model: ModelSource
    lineage: Object | None
    """The job that produced the model: name, uid, base, step, digest. None if no job did."""
    data: DataSpec
    method: MethodSpec
    hyperparameters: HyperparametersSpec
    checkpointing: CheckpointPolicy
    evaluation: EvaluationSpec
    export: ExportSpec
    exported_checkpoint: str
    """Best or Last. By default, Best if training measures which checkpoint is best, and else Last."""
    on_gate_failure: str
    """Skip or Export."""
    export_proof: bool
    profiling: ProfilingSpec | None
    """None if nothing is profiled."""
    smoke: SmokeSpec | None
    """None if preflight trains no miniature of the model."""
    memory: MemoryCheckSpec | None
    """Memory check of preflight. None: no check."""
    use_cache: str
    engine_overrides: Mapping[str, str]
    recovery: DefaultedRecovery
    budget: SpendingLimits
    limits: TimeLimits
    run_folder: RunFolder
    resumes: bool
    """Whether the run folder is that of another job, from which this job resumes."""
    cache: CacheLayout
    programs: str
    """Folder of compiled programs (JAX's persistent compilation cache), used by this namespace only."""
    image: str
    cpu_image: str | None
    """Image of Convert and Export. None: they run ``image``, as every other stage does."""
    service_account_tpu: str
    service_account_cpu: str
    hub_token: tuple[str, str] | None
    """Name and key of the Secret; never its value."""
    upload_tokens: Mapping[str, tuple[str, str]]
    """Name and key of the Secret of each hub destination, by environment variable."""
    cpu_pool: DefaultedCpuPool
    queues: Queues
    pod: DefaultedPodSettings
    """The profile's additions to every pod; the labels include those of the job that it copied at admission."""
    currency: str | None
    owner_of_profile: Object
    """Team and contact of the profile's owner, as far as the profile names them; used in messages."""
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
        """Whether any stage reads a model or data from the hub."""
        evaluated = (dataset.source for dataset in self.evaluation.datasets)
        sources = (self.model, self.model.tokenizer, *self.data.train, *self.data.validation, *evaluated)
        return any(source is not None and source.hugging_face is not None for source in sources) or any(
            benchmark.uri is None for benchmark in self.evaluation.benchmarks
        )
