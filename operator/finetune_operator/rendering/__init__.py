"""Renders a plan, a stage and an attempt number into a JobSet, as plain dicts. Pure."""

from finetune_operator.rendering.jobset import first_group, render_jobset
from finetune_operator.rendering.labels import (
    ATTEMPT_LABEL,
    MAX_RESTART,
    PLAN_ANNOTATION,
    RESTART_LABEL,
    STAGE_LABEL,
    UID_LABEL,
    attempt_of,
    jobset_name,
)
from finetune_operator.rendering.memory import CpuPoolTooSmall
from finetune_operator.rendering.offline import KNOWN_LATER_ANNOTATION, plan_offline

__all__ = [
    "ATTEMPT_LABEL",
    "KNOWN_LATER_ANNOTATION",
    "MAX_RESTART",
    "PLAN_ANNOTATION",
    "RESTART_LABEL",
    "STAGE_LABEL",
    "UID_LABEL",
    "CpuPoolTooSmall",
    "attempt_of",
    "first_group",
    "jobset_name",
    "plan_offline",
    "render_jobset",
]
