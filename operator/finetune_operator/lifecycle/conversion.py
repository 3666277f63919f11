"""Whether the model is converted already: by an attempt of the job, or by another job, whose result lies in the cache.

What another job left is used only if preflight has compared it with storage, file by file, and the manifest still names
that entry. What an attempt of the job says that it left is used only if it lies in the job's cache, since the job's own
account may write that record. A conversion that a later stage found damaged counts no more, whoever made it: Convert
runs again.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from finetune_contract import ConvertManifest, ConvertOutcome, ExitCode, Failure, PreflightOutcome
from finetune_contract.failure import CONVERTED_MODEL_DAMAGED
from finetune_contract.layout import of_attempt
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.classify import RESULT_MALFORMED, AttemptOutcome, AttemptResult
from finetune_operator.lifecycle.retry_budget import Judged
from finetune_operator.planning import Plan

_REPLACED = "the entry that preflight compared was replaced or removed since"
#: How the trainer's record ends a ``where`` that is too long for it.
_CUT = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedConversions:
    """Converted models that stages found damaged, with what each stage said."""

    found: tuple[tuple[Attempt, Failure], ...]

    @classmethod
    def of(cls, judged: Iterable[Judged]) -> "DamagedConversions":
        """Of all attempts of the job, whatever counts against its budgets."""
        return cls(
            found=tuple(
                (attempt, verdict.failure)
                for attempt, verdict in judged
                if verdict.failure and verdict.failure.reason == CONVERTED_MODEL_DAMAGED
            )
        )

    def name(self, items: str) -> bool:
        """Whether that converted model is one of them."""
        return any(_is(failure.where, items) for _, failure in self.found)

    @property
    def told(self) -> tuple[str, ...]:
        return tuple(
            f"{attempt.key.stage} found the converted model damaged: {failure.saw}"
            for attempt, failure in self.found
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedConversion:
    """What the cache has for the job."""

    usable: ConvertManifest | None
    missed: tuple[str, ...] = ()
    """Why there is nothing to use, where that is known; also while the job's own attempt converts, and after it."""


def placed(attempt: Attempt, verdict: AttemptResult, plan: Plan) -> AttemptResult:
    """The verdict; a failure where the attempt's record sends later stages to a model outside of the job's cache."""
    result = attempt.files.result if attempt.files else None
    details = result.details if result else None
    if verdict.ending is not AttemptOutcome.SUCCEEDED or not isinstance(details, ConvertOutcome):
        return verdict
    found = details.manifest
    if plan.cache.convert_entry(found.fingerprint, found.items) is not None:
        return verdict
    failure = Failure(
        code=ExitCode.UNAVAILABLE,
        reason=RESULT_MALFORMED,
        message="The stage has ended, and its record cannot be understood: it says that the converted model is "
        f"{found.items[:512]!r}, which is no entry of the job's cache, {plan.cache.uri[:256]}.",
        fix="The stage is tried again. Where it happens again, look for what else writes to the run folder.",
    )
    return AttemptResult(ending=AttemptOutcome.FAILED, failure=failure, finished=verdict.finished)


def succeeded(attempt: Attempt, verdict: AttemptResult, damages: DamagedConversions) -> bool:
    """Whether the attempt ended well, and what it left still counts."""
    if verdict.ending is not AttemptOutcome.SUCCEEDED:
        return False
    result = attempt.files.result if attempt.files else None
    details = result.details if result else None
    return not (isinstance(details, ConvertOutcome) and damages.name(details.manifest.items))


def in_cache(
    manifest: ConvertManifest | None,
    fault: str,
    plan: Plan,
    preflight: PreflightOutcome | None,
    damages: DamagedConversions,
) -> CachedConversion:
    """Judge what lies at the fingerprint's manifest, as it is now. ``fault``: why it cannot be read."""
    if preflight is None:
        return CachedConversion(usable=None)
    known = _known(plan, preflight, damages)
    compared = preflight.conversion if plan.use_cache == "Use" else None
    if manifest is None:
        why = _REPLACED if compared and compared.result == "Hit" else fault
    elif manifest.fingerprint != preflight.fingerprint:
        why = "its manifest in the cache is of another fingerprint"
    elif (entry := plan.cache.convert_entry(preflight.fingerprint, manifest.items)) is None:
        why = "its manifest in the cache names a folder outside of its own"
    elif plan.export_proof and not manifest.export_proven:
        why = "the entry in the cache was made without the export proof"
    elif damages.name(manifest.items):
        why = ""
    elif of_attempt(entry, plan.job.uid):
        # An attempt of this job may have finished its work and died before it could say so.
        return CachedConversion(usable=manifest, missed=known)
    elif known or (compared and compared.result == "Miss"):
        why = ""
    elif compared and (compared.uri, compared.files_digest) != (manifest.items, manifest.files_digest):
        why = _REPLACED
    else:
        return CachedConversion(usable=manifest)
    return CachedConversion(usable=None, missed=known or ((why,) if why else ()))


def _known(plan: Plan, preflight: PreflightOutcome, damages: DamagedConversions) -> tuple[str, ...]:
    """Why no other job's conversion is used, whatever lies in the cache now."""
    if damages.found:
        return damages.told
    if plan.use_cache != "Use":
        return (f"spec.cache is {plan.use_cache}",)
    return tuple(preflight.conversion.miss_because) if preflight.conversion else ()


def _is(where: str, items: str) -> bool:
    return where == items or (where.endswith(_CUT) and len(where) > 1 and items.startswith(where[:-1]))
