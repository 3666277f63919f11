"""The API types FineTuneJob and FineTuneProfile.

``parse_job``, ``parse_profile`` and ``parse_merged`` turn documents into models and raise only :class:`InvalidObject`;
``field_paths`` and ``number_paths`` list the fields that a profile may name;
``python -m tools.generate`` writes the CRDs from the models.
"""

from finetune_operator.api.common import API_VERSION as API_VERSION
from finetune_operator.api.common import GROUP as GROUP
from finetune_operator.api.conditions import Condition as Condition
from finetune_operator.api.conditions import ConditionStatus as ConditionStatus
from finetune_operator.api.conditions import ConditionType as ConditionType
from finetune_operator.api.conditions import Phase as Phase
from finetune_operator.api.conditions import Reason as Reason
from finetune_operator.api.conditions import WaitingReason as WaitingReason
from finetune_operator.api.job import FineTuneJob as FineTuneJob
from finetune_operator.api.job import FineTuneJobSpec as FineTuneJobSpec
from finetune_operator.api.method import Method as Method
from finetune_operator.api.method import MethodType as MethodType
from finetune_operator.api.method import options_of as options_of
from finetune_operator.api.model import Model as Model
from finetune_operator.api.numbers import canonical as canonical
from finetune_operator.api.numbers import exact as exact
from finetune_operator.api.parsing import FieldError as FieldError
from finetune_operator.api.parsing import InvalidObject as InvalidObject
from finetune_operator.api.parsing import parse_job as parse_job
from finetune_operator.api.parsing import parse_merged as parse_merged
from finetune_operator.api.parsing import parse_profile as parse_profile
from finetune_operator.api.parsing import render_path as render_path
from finetune_operator.api.parsing import without_nulls as without_nulls
from finetune_operator.api.paths import field_paths as field_paths
from finetune_operator.api.paths import number_paths as number_paths
from finetune_operator.api.policies import CachePolicy as CachePolicy
from finetune_operator.api.profile import DEFAULT_PROFILE_ANNOTATION as DEFAULT_PROFILE_ANNOTATION
from finetune_operator.api.profile import FineTuneProfile as FineTuneProfile
from finetune_operator.api.profile import FineTuneProfileSpec as FineTuneProfileSpec
from finetune_operator.api.profile import FineTuneProfileStatus as FineTuneProfileStatus
from finetune_operator.api.profile_policy import ProfileDefaults as ProfileDefaults
from finetune_operator.api.status import FineTuneJobStatus as FineTuneJobStatus
from finetune_operator.api.status_stages import StagePhase as StagePhase
from finetune_operator.api.wording import did_you_mean as did_you_mean
from finetune_operator.api.wording import one_of as one_of
from finetune_operator.api.wording import shown as shown
