"""Models of a job's and a profile's spec with all defaults filled in.

A job leaves out what it does not decide, so most fields of the API's models may be None. A merged spec
(:mod:`.merge`) has a value for each field in ``BUILT_IN``; the subclasses here declare those fields as required. They
also fill in the defaults that cannot be merged, since they depend on the presence of a section. Fields that stay
optional have the same meaning of None as in the API.
"""

from collections.abc import Mapping

from finetune_operator.api import FineTuneJobSpec, FineTuneProfileSpec, InvalidObject, Reason, parse_merged
from finetune_operator.api.common import Flag, NonNegative, NonNegativeNumber, Positive, PositiveNumber
from finetune_operator.api.data import Datasets, Dedupe
from finetune_operator.api.evaluation import Evaluation, Generation
from finetune_operator.api.export import (
    Destination,
    Export,
    ExportContent,
    ExportFormat,
    HubDestination,
    OnGateFailure,
)
from finetune_operator.api.method import (
    Hyperparameters,
    LearningRateSchedule,
    Lora,
    Method,
    Optimizer,
    Precision,
    Quantization,
)
from finetune_operator.api.placement import Controller, Parallelism, Resources
from finetune_operator.api.policies import (
    CachePolicy,
    Checkpointing,
    DatasetCheck,
    HangPolicy,
    KeepCheckpoints,
    MemoryCheck,
    Preflight,
    Profiling,
    Recovery,
    SmokeTest,
)
from finetune_operator.api.profile import EnvVar, PodSettings, Queue, ServiceAccounts
from finetune_operator.api.profile_nodes import CpuPool, Flavor, NodeSelector, PathwaysNodes, Tolerations
from finetune_operator.api.profile_policy import (
    AllowedModels,
    AllowedOverrides,
    AllowedUris,
    ConstraintMode,
    Constraints,
)
from finetune_operator.objects import Object
from finetune_operator.planning import defaults
from finetune_operator.planning.errors import Refused, invalid_spec


class DefaultedResources(Resources):
    """``spec.resources``."""

    controller: Controller
    slices: Positive
    parallelism: Parallelism = Parallelism()

    @property
    def names_a_slice(self) -> bool:
        """Whether a slice is named; if not, one of the profile's is chosen."""
        return not (self.tpu is None and self.accelerator is None and self.topology is None)


class DefaultedKeep(KeepCheckpoints):
    """``spec.checkpointing.keep``."""

    last: Positive


class DefaultedCheckpointing(Checkpointing):
    """``spec.checkpointing``."""

    every_steps: Positive
    every_seconds: Positive
    keep: DefaultedKeep


class DefaultedRecovery(Recovery):
    """``spec.recovery``."""

    max_preemptions: NonNegative
    max_infrastructure_retries: NonNegative
    max_user_retries: NonNegative


class DefaultedHangPolicy(HangPolicy):
    """``spec.hangPolicy``."""

    startup_seconds: Positive
    no_step_seconds: Positive


class DefaultedSmokeTest(SmokeTest):
    """``spec.preflight.smoke``."""

    steps: Positive = defaults.SMOKE["steps"]
    examples: Positive = defaults.SMOKE["examples"]


class DefaultedPreflight(Preflight):
    """``spec.preflight``."""

    dataset: DatasetCheck
    memory: MemoryCheck
    export_proof: Flag
    smoke: DefaultedSmokeTest | None = None


class DefaultedGeneration(Generation):
    """``spec.evaluation.generation``."""

    max_new_tokens: Positive
    temperature: NonNegativeNumber = defaults.GENERATION["temperature"]
    top_k: NonNegative = defaults.GENERATION["topK"]


class DefaultedEvaluation(Evaluation):
    """``spec.evaluation``."""

    baseline: Flag
    max_examples: Positive
    generation: DefaultedGeneration


class DefaultedHubDestination(HubDestination):
    """``spec.export.destinations[].huggingFaceHub``."""

    private: Flag = defaults.HUB_DESTINATION["private"]


class DefaultedDestination(Destination):
    """``spec.export.destinations[]``."""

    hugging_face_hub: DefaultedHubDestination | None = None


class DefaultedExport(Export):
    """``spec.export``."""

    formats: tuple[ExportFormat, ...]
    content: ExportContent = ExportContent(defaults.EXPORT["content"])
    dtype: Precision
    on_gate_failure: OnGateFailure = OnGateFailure(defaults.EXPORT["onGateFailure"])
    destinations: tuple[DefaultedDestination, ...] = ()


class DefaultedDatasets(Datasets):
    """``spec.datasets``."""

    dedupe: Dedupe
    shuffle: Flag
    max_seq_length: Positive


class DefaultedLora(Lora):
    """``spec.method.lora``."""

    rank: Positive = defaults.LORA["rank"]
    quantization: Quantization = Quantization(defaults.LORA["quantization"])


class DefaultedMethod(Method):
    """``spec.method``."""

    lora: DefaultedLora | None = None


class DefaultedHyperparameters(Hyperparameters):
    """``spec.hyperparameters``."""

    gradient_accumulation_steps: Positive
    schedule: LearningRateSchedule
    weight_decay: NonNegativeNumber
    max_grad_norm: PositiveNumber
    optimizer: Optimizer
    seed: NonNegative
    compute_precision: Precision


class DefaultedProfiling(Profiling):
    """``spec.profiling``."""

    steps: Positive = defaults.PROFILING["steps"]


class DefaultedJobSpec(FineTuneJobSpec):
    """A job's spec over all defaults."""

    pre_running_deadline_seconds: Positive
    cache: CachePolicy
    resources: DefaultedResources
    checkpointing: DefaultedCheckpointing
    recovery: DefaultedRecovery
    hang_policy: DefaultedHangPolicy
    preflight: DefaultedPreflight
    evaluation: DefaultedEvaluation
    export: DefaultedExport
    profiling: DefaultedProfiling | None = None
    datasets: DefaultedDatasets
    method: DefaultedMethod
    hyperparameters: DefaultedHyperparameters


class DefaultedConstraints(Constraints):
    """``spec.constraints`` of a profile."""

    engine_overrides: AllowedOverrides = AllowedOverrides()
    uris: AllowedUris = AllowedUris()

    @property
    def strict(self) -> bool:
        return self.mode is ConstraintMode.STRICT


class DefaultedFlavor(Flavor):
    """``spec.flavors[]`` of a profile."""

    max_slices: Positive = defaults.FLAVOR["maxSlices"]
    node_selector: NodeSelector = {}
    tolerations: Tolerations = ()


class DefaultedCpuPool(CpuPool):
    """``spec.cpuPool`` of a profile."""

    node_selector: NodeSelector = {}
    tolerations: Tolerations = ()


class DefaultedPodSettings(PodSettings):
    """``spec.pod`` of a profile."""

    env: tuple[EnvVar, ...] = ()
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class DefaultedProfileSpec(FineTuneProfileSpec):
    """A profile's spec, with empty sections for those that it leaves out."""

    service_accounts: ServiceAccounts = ServiceAccounts()
    queue: Queue = Queue()
    flavors: tuple[DefaultedFlavor, ...]
    cpu_pool: DefaultedCpuPool = DefaultedCpuPool()
    pathways: PathwaysNodes = PathwaysNodes()
    models: AllowedModels = AllowedModels()
    constraints: DefaultedConstraints = DefaultedConstraints()
    pod: DefaultedPodSettings = DefaultedPodSettings()


def job_spec(merged: Object) -> DefaultedJobSpec:
    """Returns the model of a merged spec. Raises Refused if a part was stored under a schema that differs too much."""
    try:
        return parse_merged(DefaultedJobSpec, merged)
    except InvalidObject as error:
        raise invalid_spec(
            f"spec.{error.path}: {error.message}. The job was stored under another version of the API: correct the "
            "field, or create the job again.",
        ) from error


def profile_spec(name: str, profile: Object) -> DefaultedProfileSpec:
    """Returns the model of the spec of the profile ``name``. Raises Refused as :func:`job_spec` does."""
    try:
        return parse_merged(DefaultedProfileSpec, profile)
    except InvalidObject as error:
        raise Refused(
            Reason.PROFILE_INVALID,
            f'profile "{name}": spec.{error.path}: {error.message}. The profile was stored under another version of '
            "the API: correct the field, and create jobs that were admitted before again.",
        ) from error
