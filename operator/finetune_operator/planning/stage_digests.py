"""Digests of each stage's request, which show whether an edit concerns an existing attempt.

They cover only the profile's defaults at admission and the job's current spec, neither the rendering of a release nor
its built-in defaults: an upgrade of the operator does not count as an edit.
"""

from collections.abc import Mapping
from typing import Any

from finetune_contract import Stage
from finetune_operator.planning.merge import merge
from finetune_operator.planning.stages import STAGES
from finetune_operator.planning.stored_plan import digest

#: Sections that only the operator reads: they do not change an attempt.
READ_BY_THE_OPERATOR = frozenset(
    {
        "suspend",
        "cancel",
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
    """Returns a digest by stage of the request of the job (``spec``) and the profile (``defaults``).

    Sections that never change after admission are left out.
    """
    requested = merge(defaults, spec)
    return {
        stage: digest({name: requested[name] for name in STAGES[stage].reads if name in requested})
        for stage in Stage
    }
