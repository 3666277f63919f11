"""Renders a plan, a stage and an attempt number into a JobSet, as plain dicts. Pure."""

from finetune_operator.rendering.jobset import first_group, render_jobset
from finetune_operator.rendering.labels import (
    ATTEMPT_LABEL,
    JOB_LABEL,
    MAX_RESTART,
    PLAN_ANNOTATION,
    RESTART_LABEL,
    STAGE_LABEL,
    UID_LABEL,
    attempt_of,
    jobset_name,
)
from finetune_operator.rendering.memory import CpuPoolTooSmall, cpu_memory_gib
from finetune_operator.rendering.offline import KNOWN_LATER_ANNOTATION, plan_offline

__all__ = [
    "ATTEMPT_LABEL",
    "JOB_LABEL",
    "KNOWN_LATER_ANNOTATION",
    "MAX_RESTART",
    "PLAN_ANNOTATION",
    "RESTART_LABEL",
    "STAGE_LABEL",
    "UID_LABEL",
    "CpuPoolTooSmall",
    "attempt_of",
    "cpu_memory_gib",
    "first_group",
    "jobset_name",
    "plan_offline",
    "render_jobset",
]
