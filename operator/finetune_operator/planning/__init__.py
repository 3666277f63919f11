"""Resolves what users wrote into what runs: merge, policy, topology, batch, stage requests. Pure."""

from finetune_operator.planning.admission import Admission as Admission
from finetune_operator.planning.admission import admit as admit
from finetune_operator.planning.admission import check_profile_object as check_profile_object
from finetune_operator.planning.admission import judge_findings as judge_findings
from finetune_operator.planning.admission import replan as replan
from finetune_operator.planning.errors import Refused as Refused
from finetune_operator.planning.plan import Findings as Findings
from finetune_operator.planning.plan import Plan as Plan
from finetune_operator.planning.policy.profile_checks import check_ledger as check_ledger
from finetune_operator.planning.policy.profile_checks import profile_remarks as profile_remarks
from finetune_operator.planning.profile_choice import choose_profile as choose_profile
from finetune_operator.planning.profile_choice import default_profile as default_profile
from finetune_operator.planning.profile_choice import serves as serves
from finetune_operator.planning.requests import stage_request as stage_request
from finetune_operator.planning.stored_plan import StoredPlan as StoredPlan
from finetune_operator.planning.stored_plan import read_stored_plan as read_stored_plan
from finetune_operator.planning.stored_plan import render_stored_plan as render_stored_plan
