"""Builds the plan of a job from the job and what was decided at its admission."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cache
from typing import Self

from finetune_contract import MemoryOutcome, ProfilingSpec, SmokeSpec, Stage
from finetune_operator.api import Reason
from finetune_operator.api.policies import MemoryCheck
from finetune_operator.objects import Object
from finetune_operator.planning.defaulted import DefaultedJobSpec, DefaultedProfileSpec, job_spec
from finetune_operator.planning.defaults import (
    BUILT_IN,
    CPU_STAGE_SECONDS,
    EVALUATE_SECONDS,
    REFUSED_PODS_SECONDS,
)
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.merge import lookup, merge
from finetune_operator.planning.plan import IDENTITY, Plan, TimeLimits
from finetune_operator.planning.policy.limits import bounds_of, limit_problems
from finetune_operator.planning.queueing import Queues, resolve_queues
from finetune_operator.planning.sections.datasets import resolve_data
from finetune_operator.planning.sections.evaluation import resolve_evaluation
from finetune_operator.planning.sections.export import resolve_export, secret_key, upload_tokens
from finetune_operator.planning.sections.sources import resolve_model
from finetune_operator.planning.sections.training import (
    resolve_checkpointing,
    resolve_hyperparameters,
    resolve_method,
)
from finetune_operator.planning.slices.choice import CHEAPEST, NO_WISH, choose
from finetune_operator.planning.slices.memory import resolve_memory
from finetune_operator.planning.slices.pathways import refuse_other_controller
from finetune_operator.planning.slices.slice_plan import SlicePlan, slice_plan
from finetune_operator.planning.slices.topology import (
    NONE_TRIED,
    Placement,
    SliceOffer,
    by_price,
    named_slice,
    placement,
    terms,
)
from finetune_operator.planning.stages import STAGES, stages_of
from finetune_operator.planning.stored_plan import LIFECYCLE, StoredPlan, digest, identity, owner_reference

#: Kubernetes' own service account of pods that name none.
_SERVICE_ACCOUNT = "default"
_FAULTS = {
    Reason.BATCH_MISMATCH: "has more devices than can share the batch",
    Reason.PARALLELISM_MISMATCH: "has not the number of devices that spec.resources.parallelism comes to",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A job before its slice is known."""

    job: Object
    stored: StoredPlan
    merged: Object
    """The merged spec, with the admitted values of sections that never change after admission."""
    spec: DefaultedJobSpec
    """Model of ``merged``."""
    profile: DefaultedProfileSpec
    queues: Queues

    @classmethod
    def of(cls, job: Object, stored: StoredPlan, found: MemoryOutcome | None = None) -> Self:
        """Returns the draft. Raises Refused for a spec that was stored under another schema."""
        live = merge(BUILT_IN, stored.profile.get("defaults", {}), job["spec"])
        merged = {**live, **{name: stored.spec[name] for name in IDENTITY}}
        if found is not None and lookup(merged, "preflight.memory") == MemoryCheck.OFF:
            # An edit after preflight applies to the next preflight; the findings of this one stay valid.
            merged = merge(merged, {"preflight": {"memory": found.source}})
        spec, profile = job_spec(merged), stored.profile_spec
        queues = resolve_queues(job["metadata"].get("labels") or {}, profile.queue)
        return cls(job=job, stored=stored, merged=merged, spec=spec, profile=profile, queues=queues)

    def plan(self, tried: Mapping[str, int] = NONE_TRIED, found: MemoryOutcome | None = None) -> Plan:
        """Returns the plan. Raises Refused if numbers or shapes do not fit.

        Args:
            tried: how often each flavor was tried without success, by name; those are used last.
            found: preflight's record of the training's memory, which decides the slice if the job names none.
        """
        return self.plan_on(*self.sites(tried, found))

    def plan_on(self, site: SlicePlan, candidates: Sequence[SlicePlan]) -> Plan:
        """Returns the plan for what :meth:`sites` returns. Raises Refused if numbers do not fit."""
        job, stored, spec, profile = self.job, self.stored, self.spec, self.profile
        accounts, secret = profile.service_accounts, spec.hugging_face_token_secret_ref
        length_explicit = lookup(job["spec"], "datasets.maxSeqLength") is not None
        model = resolve_model(spec.model)
        evaluation, checkpointing = resolve_evaluation(spec), resolve_checkpointing(spec)
        return Plan(
            job=identity(job),
            owner=owner_reference(job),
            digest=stored.digest,
            profile_name=stored.profile_name,
            profile_hash=stored.profile_hash,
            spec_hash=digest({name: value for name, value in self.merged.items() if name not in LIFECYCLE}),
            spec_digests=stage_digests(job["spec"], stored.profile.get("defaults", {})),
            contract=stored.contract,
            stages=stages_of(model, evaluation),
            placement=site.placement,
            flavors=terms(stored.profile["flavors"]),
            mesh=site.mesh,
            pathways=site.pathways,
            model=model,
            lineage=lookup(self.merged, "model.fromJob"),
            data=resolve_data(spec, length_explicit=length_explicit, created=_created(job)),
            method=resolve_method(spec),
            hyperparameters=resolve_hyperparameters(spec, site.global_batch),
            checkpointing=checkpointing,
            evaluation=evaluation,
            export=resolve_export(spec, accounts.cpu or _SERVICE_ACCOUNT),
            exported_checkpoint=str(
                spec.export.checkpoint or ("Best" if checkpointing.keep_best else "Last")
            ),
            on_gate_failure=spec.export.on_gate_failure.value,
            export_proof=spec.preflight.export_proof,
            profiling=ProfilingSpec(**dict(spec.profiling)) if spec.profiling else None,
            smoke=SmokeSpec(**dict(spec.preflight.smoke)) if spec.preflight.smoke else None,
            memory=resolve_memory(spec.preflight.memory, site, candidates, profile, spec.resources),
            use_cache=spec.cache.value,
            engine_overrides=spec.engine_overrides or {},
            recovery=spec.recovery,
            budget=site.budget,
            limits=_time_limits(spec),
            run_folder=stored.run_folder,
            resumes="resumeFrom" in stored.spec,
            cache=stored.cache,
            programs=stored.programs,
            image=profile.images.trainer,
            cpu_image=profile.images.cpu,
            service_account_tpu=accounts.tpu or _SERVICE_ACCOUNT,
            service_account_cpu=accounts.cpu or _SERVICE_ACCOUNT,
            hub_token=secret_key(secret) if secret else None,
            upload_tokens=upload_tokens(spec),
            cpu_pool=profile.cpu_pool,
            queues=self.queues,
            pod=profile.pod.model_copy(update={"labels": {**profile.pod.labels, **stored.job_labels}}),
            currency=profile.currency,
            owner_of_profile=profile.owner.to_document() if profile.owner else {},
            bounds=bounds_of(profile.constraints),
            plan_only=spec.plan_only,
        )

    def sites(
        self, tried: Mapping[str, int], found: MemoryOutcome | None
    ) -> tuple[SlicePlan, Sequence[SlicePlan]]:
        """Returns the job on its slice, and on those that preflight may choose instead. Arguments and errors are those
        of :meth:`plan`."""
        stored, resources, flavors = self.stored, self.spec.resources, self.profile.flavors
        name = stored.profile_name
        refuse_other_controller(lookup(stored.spec, "resources.controller"), resources.controller)
        if resources.names_a_slice:
            if tried and self.spec.budget and self.spec.budget.max_cost is not None:
                # Money cannot be counted on a flavor without a price.
                flavors = tuple(each for each in flavors if each.chip_hour_price is not None) or flavors
            taken = named_slice(
                resources,
                name,
                flavors,
                queued=self.queues.tpu is not None,
                tried=tried,
            )
            return slice_plan(self.spec, stored, taken), ()
        offers = by_price(resources, name, flavors, tried)
        if self.spec.preflight.memory is MemoryCheck.OFF:
            serving = [offer.flavor.name for offer in offers]
            taken = self._place(offers[0], f"{CHEAPEST}, {NO_WISH}", serving)
            return slice_plan(self.spec, stored, taken), ()
        before = by_price(resources, name, flavors) if tried else offers
        site_of = cache(self.site)
        choice = choose(
            offers,
            before,
            slice_faults(self, site_of),
            found,
            slices=resources.slices,
            tried=tried,
        )
        taken = self._place(choice.offer, choice.why, choice.flavors)
        return replace(site_of(choice.offer), placement=taken), [site_of(each) for each in choice.candidates]

    def site(self, offer: SliceOffer) -> SlicePlan:
        """Returns the job on a slice that it does not name. Raises Refused if its numbers do not fit that slice."""
        return slice_plan(self.spec, self.stored, self._place(offer, "", ()), share_rows=True)

    def _place(self, offer: SliceOffer, why: str, flavors: Iterable[str]) -> Placement:
        return placement(offer, why, flavors, queued=self.queues.tpu is not None)


def slice_faults(
    draft: Draft, site_of: Callable[[SliceOffer], SlicePlan]
) -> Callable[[SliceOffer], str | None]:
    """Returns why the job cannot run on an offer, in a few words; None if it can, as far as known without compiling.

    ``site_of``: :meth:`Draft.site`.
    """
    bounds = bounds_of(draft.profile.constraints)
    elsewhere: Plan | None = None

    @cache
    def fault(offer: SliceOffer) -> str | None:
        nonlocal elsewhere
        try:
            site = site_of(offer)
        except Refused as refused:
            return _FAULTS.get(refused.reason, f"does not suit the job ({refused.reason})")
        if not bounds:
            return None
        elsewhere = elsewhere or draft.plan_on(site, ())
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
        return "is not within the profile's limits" if any(limit_problems(plan, draft.merged)) else None

    return fault


def _time_limits(spec: DefaultedJobSpec) -> TimeLimits:
    hang = spec.hang_policy
    return TimeLimits(
        active=spec.active_deadline_seconds,
        pre_running=spec.pre_running_deadline_seconds,
        startup=hang.startup_seconds,
        refused_pods=hang.refused_pods_seconds or REFUSED_PODS_SECONDS,
        no_step=hang.no_step_seconds,
        evaluate=hang.stage_seconds or EVALUATE_SECONDS,
        cpu_stage=hang.stage_seconds or CPU_STAGE_SECONDS,
        blind=hang.blind_seconds,
        child_ttl=spec.child_ttl_seconds_after_finished,
    )


def stage_digests(spec: Object, defaults: Object) -> dict[Stage, str]:
    """Returns a digest by stage of the request of the job (``spec``) and the profile (``defaults`` at admission).

    It shows whether an edit concerns an existing attempt. Neither the rendering of a release nor its built-in defaults
    are part of it: an upgrade of the operator is no edit. Sections that never change after admission are left out.
    """
    requested = merge(defaults, spec)
    return {
        stage: digest({name: requested[name] for name in STAGES[stage].reads if name in requested})
        for stage in Stage
    }


def _created(job: Object) -> date | None:
    """Returns the day on which the API server created the job; None for a manifest that it has not seen."""
    stamp = job["metadata"].get("creationTimestamp")
    return datetime.fromisoformat(stamp).date() if stamp else None
