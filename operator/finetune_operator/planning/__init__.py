"""Resolves what users wrote into what runs: merge, policy, topology, batch, stage requests. Pure."""

from finetune_operator.planning.admission import (
    Admission,
    admit,
    check_profile_object,
    judge_findings,
    replan,
)
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.plan import Findings, Plan
from finetune_operator.planning.policy.profile_checks import check_ledger, profile_remarks
from finetune_operator.planning.profile_choice import choose_profile, default_profile, serves
from finetune_operator.planning.requests import stage_request
from finetune_operator.planning.stored_plan import StoredPlan, read_stored_plan, render_stored_plan

__all__ = [
    "Admission",
    "Findings",
    "Plan",
    "Refused",
    "StoredPlan",
    "admit",
    "check_ledger",
    "check_profile_object",
    "choose_profile",
    "default_profile",
    "judge_findings",
    "profile_remarks",
    "read_stored_plan",
    "render_stored_plan",
    "replan",
    "serves",
    "stage_request",
]
