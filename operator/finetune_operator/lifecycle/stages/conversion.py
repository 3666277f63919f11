"""Determines whether the model is already converted: by an attempt of the job, or by another job, in the cache.

Another job's conversion is used only if preflight has compared it with storage, file by file, and the manifest still
names the same entry. A conversion that the record of the job's own attempt names is used only if it is in the job's
cache, because the job's service account can write that record. A conversion that a later stage found damaged is not
used, and Convert runs again.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from finetune_contract import ConvertManifest, ConvertOutcome, ExitCode, Failure, PreflightOutcome
from finetune_contract.failure import CONVERTED_MODEL_DAMAGED
from finetune_contract.layout import of_attempt
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.classify import RESULT_MALFORMED, AttemptOutcome, AttemptResult
from finetune_operator.lifecycle.stages.retry_budget import ClassifiedAttempt
from finetune_operator.planning import Plan

_REPLACED = "the entry that preflight compared was replaced or removed since"
#: Last character of a ``where`` that the trainer has truncated.
_CUT = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedConversions:
    """Converted models that stages found damaged, with the failure of each stage."""

    found: tuple[tuple[Attempt, Failure], ...]

    @classmethod
    def of(cls, classified: Iterable[ClassifiedAttempt]) -> "DamagedConversions":
        """Returns those found by any attempt of the job, including attempts that count against no budget."""
        return cls(
            found=tuple(
                (attempt, result.failure)
                for attempt, result in classified
                if result.failure and result.failure.reason == CONVERTED_MODEL_DAMAGED
            )
        )

    def name(self, items: str) -> bool:
        """Whether the converted model at ``items`` is one of them."""
        return any(_is(failure.where, items) for _, failure in self.found)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(
            f"{attempt.key.stage} found the converted model damaged: {failure.actual}"
            for attempt, failure in self.found
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedConversion:
    """The conversion that the cache contains for the job."""

    usable: ConvertManifest | None
    missed: tuple[str, ...] = ()
    """Why no other job's conversion is used, if known; also set during and after the job's own conversion."""


def placed(attempt: Attempt, result: AttemptResult, plan: Plan) -> AttemptResult:
    """Returns ``result``, or a failure if the attempt's record names a converted model outside of the job's cache."""
    stage_result = attempt.result
    details = stage_result.details if stage_result else None
    if result.ending is not AttemptOutcome.SUCCEEDED or not isinstance(details, ConvertOutcome):
        return result
    found = details.manifest
    if plan.cache.convert_entry(found.fingerprint, found.items) is not None:
        return result
    failure = Failure(
        code=ExitCode.UNAVAILABLE,
        reason=RESULT_MALFORMED,
        message="The stage has ended, and its record cannot be used: it names the converted model "
        f"{found.items[:512]!r}, which is no entry of the job's cache, {plan.cache.uri[:256]}.",
        fix="The stage is retried. If this happens again, find out what else writes to the run folder.",
    )
    return AttemptResult(ending=AttemptOutcome.FAILED, failure=failure, finished=result.finished)


def succeeded(attempt: Attempt, result: AttemptResult, damages: DamagedConversions) -> bool:
    """Whether the attempt succeeded, and no stage found its conversion damaged."""
    if result.ending is not AttemptOutcome.SUCCEEDED:
        return False
    stage_result = attempt.result
    details = stage_result.details if stage_result else None
    return not (isinstance(details, ConvertOutcome) and damages.name(details.manifest.items))


def in_cache(
    manifest: ConvertManifest | None,
    fault: str,
    plan: Plan,
    preflight: PreflightOutcome | None,
    damages: DamagedConversions,
) -> CachedConversion:
    """Returns the conversion that the fingerprint's manifest names now.

    ``manifest``: None if it cannot be read, because of ``fault``.
    """
    if preflight is None:
        return CachedConversion(usable=None)
    known, lookup = _known(plan, preflight, damages), preflight.conversion
    hit = lookup if lookup and lookup.result == "Hit" else None
    if manifest is None:
        why = _REPLACED if hit else fault
    elif manifest.fingerprint != preflight.fingerprint:
        why = "its manifest in the cache has another fingerprint"
    elif (entry := plan.cache.convert_entry(preflight.fingerprint, manifest.items)) is None:
        why = "its manifest in the cache names a folder outside of its own"
    elif plan.export_proof and not manifest.export_proven:
        why = "the entry in the cache was made without the export proof"
    elif damages.name(manifest.items):
        why = ""
    elif of_attempt(entry, plan.job.uid):
        # An attempt of this job may have completed the entry and terminated before it wrote its result.
        return CachedConversion(usable=manifest, missed=known)
    elif known or hit is None:
        why = ""
    elif (hit.uri, hit.files_digest) != (manifest.items, manifest.files_digest):
        why = _REPLACED
    else:
        return CachedConversion(usable=manifest)
    return CachedConversion(usable=None, missed=known or ((why,) if why else ()))


def _known(plan: Plan, preflight: PreflightOutcome, damages: DamagedConversions) -> tuple[str, ...]:
    """Returns why no other job's conversion may be used, whatever the cache contains; empty if one may."""
    if damages.found:
        return damages.reasons
    if plan.use_cache != "Use":
        return (f"spec.cache is {plan.use_cache}",)
    return tuple(preflight.conversion.miss_because) if preflight.conversion else ()


def _is(where: str, items: str) -> bool:
    return where == items or (where.endswith(_CUT) and len(where) > 1 and items.startswith(where[:-1]))
