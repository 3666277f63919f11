"""The plan: everything about a job that rendering and status need, resolved."""

from collections.abc import Collection, Mapping
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
    Hyperparameters,
    JobIdentity,
    MemoryCheck,
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
from finetune_contract.versions import FIRST_VERSION
from finetune_operator.planning import resolve, training
from finetune_operator.planning.asked import asked_of_stages
from finetune_operator.planning.batch import resolve_global_batch, resolve_mesh
from finetune_operator.planning.budget import Budget, resolve_budget
from finetune_operator.planning.limits import Bound, bounds_of
from finetune_operator.planning.memory import resolve_memory
from finetune_operator.planning.merge import BUILT_IN, merge
from finetune_operator.planning.pathways import Pathways, refuse_other_controller, resolve_pathways
from finetune_operator.planning.queueing import Queues, resolve_queues
from finetune_operator.planning.snapshot import LIFECYCLE, Snapshot, digest, owner_reference
from finetune_operator.planning.topology import Placement, Terms, place, terms

type Object = Mapping[str, Any]

#: What never changes after admission; the rest of a spec is read when an attempt is created.
IDENTITY = ("model", "datasets", "method", "hyperparameters")
#: spec.hangPolicy.stageSeconds where nothing is said: several times what the largest models take. Evaluate holds a
#: slice meanwhile; on CPU, downloads decide.
EVALUATE_SECONDS = 6 * 3600
CPU_STAGE_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPool:
    """Nodes for the stages on CPU."""

    node_selector: Mapping[str, str]
    tolerations: tuple[Object, ...]
    max_memory: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAdditions:
    """What the profile adds to every pod, and what it grants those that hold chips."""

    env: tuple[Object, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    host_network: bool
    privileged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How many attempts may end badly, by class, before the job fails."""

    preemptions: int
    infrastructure: int
    user: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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
    """By stage: a digest of what job and profile ask of it (:mod:`.asked`)."""
    contract: ContractVersion
    """The version of the contract that the trainer image is taken to speak before preflight has reported it."""
    stages: tuple[Stage, ...]
    """In order; Convert and Evaluate only where they have something to do."""
    placement: Placement
    flavors: Mapping[str, Terms]
    """All of the profile's, by name: an earlier attempt may have run on another one."""
    mesh: MeshSpec
    pathways: Pathways | None
    """None: the controller is McJAX."""
    model: ModelSource
    lineage: Object | None
    """The job that has made the model: name, uid, base, step, digest; None: no job has."""
    data: DataSpec
    method: MethodSpec
    hyperparameters: Hyperparameters
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
    memory: MemoryCheck | None
    """What preflight proves of it; None: nothing."""
    use_cache: str
    engine_overrides: Mapping[str, str]
    recovery: Recovery
    budget: Budget
    limits: Limits
    run_folder: RunFolder
    resumes: bool
    """It is another job's, in which this one goes on."""
    cache: CacheLayout
    image: str
    service_account_tpu: str
    service_account_cpu: str
    hub_token: tuple[str, str] | None
    """Name and key of the Secret; never its value."""
    upload_tokens: Mapping[str, tuple[str, str]]
    """The same of each hub destination, by environment variable."""
    cpu_pool: CpuPool
    queues: Queues
    pod: PodAdditions
    currency: str | None
    owner_of_profile: Object
    """Whom to ask: team and contact, as far as the profile says."""
    bounds: tuple[Bound, ...]
    """The profile's ``constraints.limits``."""
    plan_only: bool

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


def make_plan(job: Object, snapshot: Snapshot, passed: Collection[str] = ()) -> Plan:
    """Resolve an admitted job. Raises Refused where numbers or shapes do not fit.

    ``passed``: kinds of capacity that were waited for in vain; the next one is taken, while there is one.
    """
    profile, metadata = snapshot.profile, job["metadata"]
    live = merge(BUILT_IN, profile.get("defaults", {}), job["spec"])
    spec = {**live, **{name: snapshot.spec[name] for name in IDENTITY}}
    resources = spec["resources"]
    refuse_other_controller(snapshot.spec["resources"]["controller"], resources["controller"])
    queues = resolve_queues(metadata, profile)
    queued = queues.tpu is not None
    placement = place(resources, snapshot.profile_name, profile["flavors"], queued=queued, passed=passed)
    mesh = resolve_mesh(
        placement.shape, resources["slices"], resources.get("parallelism", {}), resources["controller"]
    )
    accounts, cpu_pool, pod = (profile.get(name, {}) for name in ("serviceAccounts", "cpuPool", "pod"))
    secret = spec.get("huggingFaceTokenSecretRef")
    # A trainer image from before the contract had minor versions refuses a key that it does not know.
    knows_asked = snapshot.contract is not None
    length_asked = knows_asked and job["spec"].get("datasets", {}).get("maxSeqLength") is not None
    model = resolve.model(spec["model"])
    evaluation, checkpointing = resolve.evaluation(spec), resolve.checkpointing(spec)
    return Plan(
        job=JobIdentity(
            namespace=metadata.get("namespace", "default"), name=metadata["name"], uid=metadata["uid"]
        ),
        owner=owner_reference(job),
        digest=snapshot.digest,
        profile_name=snapshot.profile_name,
        profile_hash=snapshot.profile_hash,
        spec_hash=digest({name: value for name, value in spec.items() if name not in LIFECYCLE}),
        asked=asked_of_stages(job["spec"], profile.get("defaults", {})),
        contract=snapshot.contract or FIRST_VERSION,
        stages=tuple(
            stage
            for stage in Stage
            if (stage is not Stage.CONVERT or model.orbax is None)
            and (
                stage is not Stage.EVALUATE
                or evaluation.prompts
                or evaluation.datasets
                or evaluation.benchmarks
                or evaluation.gates
            )
        ),
        placement=placement,
        flavors=terms(profile["flavors"]),
        mesh=mesh,
        pathways=resolve_pathways(profile, snapshot.job.namespace, placement)
        if mesh.controller == "Pathways"
        else None,
        model=model,
        lineage=spec["model"].get("fromJob"),
        data=resolve.data(spec, length_asked=length_asked),
        method=training.method(spec),
        hyperparameters=training.hyperparameters(spec, resolve_global_batch(spec["hyperparameters"], mesh)),
        checkpointing=checkpointing,
        evaluation=evaluation,
        export=resolve.export(spec, accounts.get("cpu", "default")),
        exported_checkpoint=spec["export"].get("checkpoint", "Best" if checkpointing.keep_best else "Last"),
        on_gate_failure=spec["export"].get("onGateFailure", "Skip"),
        export_proof=spec["preflight"]["exportProof"],
        profiling=resolve.profiling(spec),
        smoke=resolve.smoke(spec),
        memory=resolve_memory(spec["preflight"]["memory"], placement, mesh, profile, resources),
        use_cache=spec["cache"],
        engine_overrides=spec.get("engineOverrides", {}),
        recovery=Recovery(
            preemptions=spec["recovery"]["maxPreemptions"],
            infrastructure=spec["recovery"]["maxInfrastructureRetries"],
            user=spec["recovery"]["maxUserRetries"],
        ),
        budget=resolve_budget(spec, snapshot.profile_name, profile, placement.chip_hour_price),
        limits=Limits(
            active=spec.get("activeDeadlineSeconds"),
            pre_running=spec["preRunningDeadlineSeconds"],
            startup=spec["hangPolicy"]["startupSeconds"],
            no_step=spec["hangPolicy"]["noStepSeconds"],
            evaluate=spec["hangPolicy"].get("stageSeconds", EVALUATE_SECONDS),
            cpu_stage=spec["hangPolicy"].get("stageSeconds", CPU_STAGE_SECONDS),
            blind=spec["hangPolicy"].get("blindSeconds"),
            child_ttl=spec.get("childTTLSecondsAfterFinished"),
        ),
        run_folder=snapshot.run_folder,
        resumes="resumeFrom" in snapshot.spec,
        cache=snapshot.cache,
        image=profile["images"]["trainer"],
        service_account_tpu=accounts.get("tpu", "default"),
        service_account_cpu=accounts.get("cpu", "default"),
        hub_token=(secret["name"], secret.get("key", "token")) if secret else None,
        upload_tokens=resolve.upload_tokens(spec),
        cpu_pool=CpuPool(
            node_selector=cpu_pool.get("nodeSelector", {}),
            tolerations=tuple(cpu_pool.get("tolerations", ())),
            max_memory=cpu_pool.get("maxMemory"),
        ),
        queues=queues,
        pod=PodAdditions(
            env=tuple(pod.get("env", ())),
            labels=pod.get("labels", {}),
            annotations=pod.get("annotations", {}),
            host_network=pod.get("hostNetwork", False),
            privileged=pod.get("privileged", False),
        ),
        currency=profile.get("currency"),
        owner_of_profile=profile.get("owner", {}),
        bounds=bounds_of(profile),
        plan_only=bool(spec.get("planOnly", False)),
    )
