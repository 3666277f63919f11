"""Renders a plan, a stage and an attempt number into a JobSet, as plain dicts. Pure."""

from finetune_operator.rendering.jobset import first_group as first_group
from finetune_operator.rendering.jobset import render_jobset as render_jobset
from finetune_operator.rendering.labels import MAX_RESTART as MAX_RESTART
from finetune_operator.rendering.labels import attempt_of as attempt_of
from finetune_operator.rendering.labels import jobset_name as jobset_name
from finetune_operator.rendering.memory import CpuPoolTooSmall as CpuPoolTooSmall
from finetune_operator.rendering.offline import KNOWN_LATER_ANNOTATION as KNOWN_LATER_ANNOTATION
