"""Builds the plan of a job from the job and what was decided at its admission."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Self

from finetune_contract import JobIdentity, MemoryOutcome
from finetune_contract.versions import FIRST_VERSION
from finetune_operator.api import Reason
from finetune_operator.planning import resolve, training
from finetune_operator.planning.choice import CHEAPEST, NO_WISH, choose
from finetune_operator.planning.defaults import BUILT_IN, CPU_STAGE_SECONDS, EVALUATE_SECONDS, EXPORT, filled
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.limits import bounds_of, limit_problems
from finetune_operator.planning.memory import resolve_memory, without_choice
from finetune_operator.planning.merge import merge
from finetune_operator.planning.pathways import refuse_other_controller
from finetune_operator.planning.plan import IDENTITY, CpuNodes, Plan, PodAdditions, RetryLimits, TimeLimits
from finetune_operator.planning.queueing import Queues, resolve_queues
from finetune_operator.planning.slice_plan import SlicePlan, slice_plan
from finetune_operator.planning.stage_digests import stage_digests
from finetune_operator.planning.stages import stages_of
from finetune_operator.planning.stored_plan import LIFECYCLE, StoredPlan, digest, owner_reference
from finetune_operator.planning.topology import (
    SliceOffer,
    by_price,
    named_slice,
    names_a_slice,
    placement,
    terms,
)

type Object = Mapping[str, Any]

_FAULTS = {
    Reason.BATCH_MISMATCH: "has more devices than can share the batch",
    Reason.PARALLELISM_MISMATCH: "has not the number of devices that spec.resources.parallelism comes to",
}


def make_plan(
    job: Object, snapshot: StoredPlan, passed: Collection[str] = (), found: MemoryOutcome | None = None
) -> Plan:
    """Resolves an admitted job. Raises Refused if numbers or shapes do not fit.

    Args:
        job: the FineTuneJob.
        snapshot: the decisions of its admission.
        passed: capacity types that provided no nodes in time; the next one is used, as long as there is one.
        found: preflight's record of the training's memory, which decides the slice if the job names none.
    """
    draft = _Draft.of(job, snapshot, found)
    resources = draft.spec["resources"]
    name, flavors = snapshot.profile_name, snapshot.profile["flavors"]
    if names_a_slice(resources):
        taken = named_slice(resources, name, flavors, queued=draft.queued, passed=passed)
        return draft.at(slice_plan(draft.spec, snapshot, taken))
    offers = by_price(resources, name, flavors, passed)
    if draft.spec["preflight"]["memory"] == "Off":
        kinds = [offer.capacity for offer in offers]
        taken = placement(offers[0], f"{CHEAPEST}, {NO_WISH}", kinds, queued=draft.queued)
        return draft.at(slice_plan(draft.spec, snapshot, taken))
    before = by_price(resources, name, flavors) if passed else offers
    choice = choose(offers, before, _faults(draft), found, slices=resources["slices"], passed=passed)
    site = draft.site(choice.offer, choice.why, choice.capacities)
    return draft.at(site, [draft.site(each) for each in choice.candidates])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A job before its slice is known."""

    job: Object
    snapshot: StoredPlan
    spec: Object
    """The merged spec, with the admitted values of sections that never change after admission."""
    queues: Queues

    @classmethod
    def of(cls, job: Object, snapshot: StoredPlan, found: MemoryOutcome | None) -> Self:
        """Returns the draft. Raises Refused if an edit changes the controller."""
        live = merge(BUILT_IN, snapshot.profile.get("defaults", {}), job["spec"])
        spec = {**live, **{name: snapshot.spec[name] for name in IDENTITY}}
        if found is not None and spec["preflight"]["memory"] == "Off":
            # An edit after preflight applies to the next preflight; the findings of this one stay valid.
            spec["preflight"] = {**spec["preflight"], "memory": found.source}
        refuse_other_controller(snapshot.spec["resources"]["controller"], spec["resources"]["controller"])
        queues = resolve_queues(job["metadata"], snapshot.profile)
        return cls(job=job, snapshot=snapshot, spec=spec, queues=queues)

    @property
    def queued(self) -> bool:
        """Whether a queue admits the job's slices."""
        return self.queues.tpu is not None

    def site(self, offer: SliceOffer, why: str = "", capacities: Collection[str] = ()) -> SlicePlan:
        """Returns the job on a slice that it does not name. Raises Refused if its numbers do not fit that slice."""
        taken = placement(offer, why, capacities, queued=self.queued)
        return slice_plan(self.spec, self.snapshot, taken, share_rows=True)

    def at(self, site: SlicePlan, candidates: Sequence[SlicePlan] = ()) -> Plan:
        """Returns the plan at ``site``. ``candidates`` are the slices that preflight may choose instead."""
        return _plan(self, site, candidates)


def _faults(draft: _Draft) -> Callable[[SliceOffer], str | None]:
    """Returns why the job cannot run on an offer, in a few words; None if it can, as far as known without compiling."""
    bounds = bounds_of(draft.snapshot.profile)
    elsewhere: Plan | None = None

    @cache
    def fault(offer: SliceOffer) -> str | None:
        nonlocal elsewhere
        try:
            site = draft.site(offer)
        except Refused as refused:
            return _FAULTS.get(refused.reason, f"does not suit the job ({refused.reason})")
        if not bounds:
            return None
        elsewhere = elsewhere or draft.at(site)
        plan = replace(
            elsewhere,
            placement=site.placement,
            mesh=site.mesh,
            hyperparameters=elsewhere.hyperparameters.model_copy(
                update={"global_batch_size": site.global_batch}
            ),
            budget=site.budget,
            # Limits apply to the planned mesh, too, even if preflight may still change it.
            memory=None,
        )
        return "is not within the profile's limits" if any(limit_problems(plan, draft.spec)) else None

    return fault


def _plan(draft: _Draft, site: SlicePlan, candidates: Sequence[SlicePlan]) -> Plan:
    job, snapshot, spec = draft.job, draft.snapshot, draft.spec
    profile, metadata, resources = snapshot.profile, job["metadata"], spec["resources"]
    accounts, cpu_pool, pod = (profile.get(name, {}) for name in ("serviceAccounts", "cpuPool", "pod"))
    secret = spec.get("huggingFaceTokenSecretRef")
    # A trainer image from before the contract had minor versions rejects unknown keys.
    knows_asked = snapshot.contract is not None
    memory = resolve_memory(spec["preflight"]["memory"], site, candidates, profile, resources)
    length_asked = knows_asked and job["spec"].get("datasets", {}).get("maxSeqLength") is not None
    stamp = metadata.get("creationTimestamp")
    created = datetime.fromisoformat(stamp).date() if stamp else None
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
        asked=stage_digests(job["spec"], profile.get("defaults", {})),
        contract=snapshot.contract or FIRST_VERSION,
        stages=stages_of(model, evaluation),
        placement=site.placement,
        flavors=terms(profile["flavors"]),
        mesh=site.mesh,
        pathways=site.pathways,
        model=model,
        lineage=spec["model"].get("fromJob"),
        data=resolve.data(spec, length_asked=length_asked, created=created if knows_asked else None),
        method=training.method(spec),
        hyperparameters=training.hyperparameters(spec, site.global_batch),
        checkpointing=checkpointing,
        evaluation=evaluation,
        export=resolve.export(spec, accounts.get("cpu", "default")),
        exported_checkpoint=spec["export"].get("checkpoint", "Best" if checkpointing.keep_best else "Last"),
        on_gate_failure=filled(spec["export"], EXPORT)["onGateFailure"],
        export_proof=spec["preflight"]["exportProof"],
        profiling=resolve.profiling(spec),
        smoke=resolve.smoke(spec),
        memory=memory if knows_asked or memory is None else without_choice(memory),
        use_cache=spec["cache"],
        engine_overrides=spec.get("engineOverrides", {}),
        recovery=RetryLimits(
            preemptions=spec["recovery"]["maxPreemptions"],
            infrastructure=spec["recovery"]["maxInfrastructureRetries"],
            user=spec["recovery"]["maxUserRetries"],
        ),
        budget=site.budget,
        limits=TimeLimits(
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
        programs=snapshot.programs,
        image=profile["images"]["trainer"],
        cpu_image=profile["images"].get("cpu"),
        service_account_tpu=accounts.get("tpu", "default"),
        service_account_cpu=accounts.get("cpu", "default"),
        hub_token=(secret["name"], secret.get("key", "token")) if secret else None,
        upload_tokens=resolve.upload_tokens(spec),
        cpu_pool=CpuNodes(
            node_selector=cpu_pool.get("nodeSelector", {}),
            tolerations=tuple(cpu_pool.get("tolerations", ())),
            max_memory=cpu_pool.get("maxMemory"),
            max_ephemeral_storage=cpu_pool.get("maxEphemeralStorage"),
        ),
        queues=draft.queues,
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
