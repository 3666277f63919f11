"""What a job asks of each stage: whether an edit concerns an attempt that has been made.

Neither what a release renders nor its built-in defaults count here, only what the profile said at admission and what
the job says now: an upgrade of the operator is no edit.
"""

from collections.abc import Mapping
from typing import Any

from finetune_contract import Stage
from finetune_operator.planning.merge import merge
from finetune_operator.planning.stages import STAGES
from finetune_operator.planning.stored_plan import digest

#: Sections that are the operator's alone: an attempt is the same whatever they say.
READ_BY_THE_OPERATOR = frozenset(
    {
        "suspend",
        "planOnly",
        "retry",
        "activeDeadlineSeconds",
        "preRunningDeadlineSeconds",
        "childTTLSecondsAfterFinished",
        "budget",
        "recovery",
        "hangPolicy",
    }
)


def stage_digests(spec: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[Stage, str]:
    """By stage, a digest of what job (``spec``) and profile (``defaults``) ask of it. What never changes after
    admission is left out."""
    asked = merge(defaults, spec)
    return {
        stage: digest({name: asked[name] for name in STAGES[stage].reads if name in asked}) for stage in Stage
    }
