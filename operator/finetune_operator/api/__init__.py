"""The API types FineTuneJob and FineTuneProfile.

``parse_job``, ``parse_profile`` and ``parse_merged`` turn documents into models and raise only
:class:`InvalidObject`;
``field_paths`` and ``number_paths`` list the fields that a profile may name;
``python -m finetune_operator.api.generate`` writes the CRDs.
"""

from finetune_operator.api.common import API_VERSION, GROUP
from finetune_operator.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Phase,
    Reason,
    WaitingReason,
)
from finetune_operator.api.job import FineTuneJob, FineTuneJobSpec
from finetune_operator.api.method import Method, MethodType, options_of
from finetune_operator.api.model import Model
from finetune_operator.api.numbers import canonical, exact, unquoted
from finetune_operator.api.parsing import (
    InvalidObject,
    did_you_mean,
    one_of,
    parse_job,
    parse_merged,
    parse_profile,
    render_path,
    unknown_field,
    without_nulls,
)
from finetune_operator.api.paths import field_paths, number_paths
from finetune_operator.api.policies import CachePolicy
from finetune_operator.api.profile import (
    DEFAULT_PROFILE_ANNOTATION,
    FineTuneProfile,
    FineTuneProfileSpec,
    FineTuneProfileStatus,
)
from finetune_operator.api.profile_policy import ProfileDefaults
from finetune_operator.api.status import FineTuneJobStatus
from finetune_operator.api.status_stages import StagePhase
from finetune_operator.api.string_formats import form

__all__ = [
    "API_VERSION",
    "DEFAULT_PROFILE_ANNOTATION",
    "GROUP",
    "CachePolicy",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "FineTuneJob",
    "FineTuneJobSpec",
    "FineTuneJobStatus",
    "FineTuneProfile",
    "FineTuneProfileSpec",
    "FineTuneProfileStatus",
    "InvalidObject",
    "Method",
    "MethodType",
    "Model",
    "Phase",
    "ProfileDefaults",
    "Reason",
    "StagePhase",
    "WaitingReason",
    "canonical",
    "did_you_mean",
    "exact",
    "field_paths",
    "form",
    "number_paths",
    "one_of",
    "options_of",
    "parse_job",
    "parse_merged",
    "parse_profile",
    "render_path",
    "unknown_field",
    "unquoted",
    "without_nulls",
]
