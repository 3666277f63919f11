"""Determines whether the model is already converted: by an attempt of the job, or by another job, in the cache.

Another job's conversion is used only if preflight has compared it with storage, file by file, and the manifest still
names the same entry. A conversion that the record of the job's own attempt names is used only if it is in the job's
cache, because the job's service account can write that record. A conversion that a later stage found damaged is not
used, and Convert runs again.
"""

from collections.abc import Iterable, Sequence

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


type Damages = Sequence[tuple[Attempt, Failure]]
"""Attempts that found the converted model damaged, with their failures."""


def damages_of(classified: Iterable[ClassifiedAttempt]) -> Damages:
    """Returns those of all attempts of the job, including attempts that count against no budget."""
    return [
        (attempt, result.failure)
        for attempt, result in classified
        if result.failure and result.failure.reason == CONVERTED_MODEL_DAMAGED
    ]


def placed(attempt: Attempt, result: AttemptResult, plan: Plan) -> AttemptResult:
    """Returns ``result``, or a failure if the attempt's record names a converted model outside of the job's cache."""
    found = _converted(attempt)
    if result.ending is not AttemptOutcome.SUCCEEDED or found is None:
        return result
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


def succeeded(attempt: Attempt, result: AttemptResult, damages: Damages) -> bool:
    """Whether the attempt succeeded, and no stage found its conversion damaged."""
    made = _converted(attempt)
    return result.ending is AttemptOutcome.SUCCEEDED and not (made and _damaged(made.items, damages))


def in_cache(
    manifest: ConvertManifest | None,
    fault: str,
    plan: Plan,
    preflight: PreflightOutcome | None,
    damages: Damages,
) -> tuple[ConvertManifest | None, tuple[str, ...]]:
    """Returns the conversion that the fingerprint's manifest names now, if it can be used; and why no other job's is
    used, if known, also during and after the job's own conversion.

    ``manifest``: None if it cannot be read, because of ``fault``.
    """
    if preflight is None:
        return None, ()
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
    elif _damaged(manifest.items, damages):
        why = ""
    elif of_attempt(entry, plan.job.uid):
        # An attempt of this job may have completed the entry and terminated before it wrote its result.
        return manifest, known
    elif known or hit is None:
        why = ""
    elif (hit.uri, hit.files_digest) != (manifest.items, manifest.files_digest):
        why = _REPLACED
    else:
        return manifest, ()
    return None, known or ((why,) if why else ())


def _known(plan: Plan, preflight: PreflightOutcome, damages: Damages) -> tuple[str, ...]:
    """Returns why no other job's conversion may be used, whatever the cache contains; empty if one may."""
    if damages:
        return tuple(
            f"{attempt.key.stage} found the converted model damaged: {failure.actual}"
            for attempt, failure in damages
        )
    if plan.use_cache != "Use":
        return (f"spec.cache is {plan.use_cache}",)
    return tuple(preflight.conversion.miss_because) if preflight.conversion else ()


def _converted(attempt: Attempt) -> ConvertManifest | None:
    details = attempt.result.details if attempt.result else None
    return details.manifest if isinstance(details, ConvertOutcome) else None


def _damaged(items: str, damages: Damages) -> bool:
    """Whether the converted model at ``items`` was found damaged."""
    found = [failure.where for _, failure in damages]
    return any(
        where == items or (where.endswith(_CUT) and len(where) > 1 and items.startswith(where[:-1]))
        for where in found
    )
