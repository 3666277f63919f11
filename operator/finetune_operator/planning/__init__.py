"""From what users wrote to what will run: merge, policy, topology, batch, stage requests. Pure."""

from finetune_operator.planning.admission import (
    Admission,
    admit,
    check_profile_object,
    judge_findings,
    replan,
)
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.making import make_plan
from finetune_operator.planning.plan import CpuPool, Findings, Plan
from finetune_operator.planning.policy import profile_remarks
from finetune_operator.planning.requests import stage_request
from finetune_operator.planning.snapshot import Snapshot, read_snapshot, render_snapshot

__all__ = [
    "Admission",
    "CpuPool",
    "Findings",
    "Plan",
    "Refused",
    "Snapshot",
    "admit",
    "check_profile_object",
    "judge_findings",
    "make_plan",
    "profile_remarks",
    "read_snapshot",
    "render_snapshot",
    "replan",
    "stage_request",
]
