"""What preflight's data took from the cache, told as one of the stage."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import PreflightOutcome
from finetune_operator.lifecycle.progress import decimal

type Object = Mapping[str, Any]

MOST_REASONS = 8
"""That the status stores of a stage."""


def data_cache(found: PreflightOutcome) -> Object | None:
    """``status.stages[].cache``: a hit only where every source was there. None: no cache was asked."""
    uses = found.prepared
    if not uses:
        return None
    missed = [use for use in uses if use.result == "Miss"]
    told: dict[str, Any] = {"result": "Miss" if missed else "Hit"}
    shown = (missed or uses)[0]
    told["fingerprint"] = shown.fingerprint
    if shown.uri:
        told["sourceURI"] = shown.uri
    told["sizeBytes"] = sum(use.size_bytes for use in uses)
    saved = sum(use.saved_seconds for use in uses)
    if saved:
        told["savedSeconds"] = decimal(round(saved, 1))
    reasons = [f"{use.path}: {why}" for use in missed for why in use.miss_because]
    if reasons:
        told["missBecause"] = reasons[:MOST_REASONS]
    return told
