"""Plan, stage and what earlier stages found -> the contract's stage request."""

from finetune_contract import Hyperparameters, Stage, StageRequest
from finetune_contract.request import MAX_REQUEST_BYTES
from finetune_operator.api import Reason
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.plan import Findings, Plan

#: Highest number of an attempt: what fits the names of pods.
MAX_ATTEMPT = 999


def stage_request(plan: Plan, stage: Stage, attempt: int, findings: Findings) -> StageRequest:
    """What the stage's container is told. Raises Refused when it is larger than a process can be given."""
    request = StageRequest.model_validate(
        {
            "job": plan.job,
            "stage": stage,
            "attempt": attempt,
            "run_folder": plan.run_folder.uri,
            "cache": plan.cache.uri,
            "use_cache": plan.use_cache,
            "model": plan.model,
            "data": plan.data,
            "method": plan.method,
            "hyperparameters": _hyperparameters(plan, findings),
            "mesh": plan.mesh,
            "checkpointing": plan.checkpointing,
            "evaluation": plan.evaluation,
            "export": plan.export,
            "export_proof": plan.export_proof,
            "engine_overrides": dict(plan.engine_overrides),
            "fingerprint": findings.preflight.fingerprint if findings.preflight else None,
            "converted": findings.converted.items if findings.converted else None,
            "train_step": findings.train.step if findings.train else None,
        }
    )
    size = len(request.to_json().encode())
    if size > MAX_REQUEST_BYTES:
        raise Refused(
            Reason.REQUEST_TOO_LARGE,
            f"the request of stage {stage} has {size} bytes, at most {MAX_REQUEST_BYTES} fit into a container's "
            "environment. Shorten spec.evaluation.prompts or spec.engineOverrides.",
        )
    return request


def _hyperparameters(plan: Plan, findings: Findings) -> Hyperparameters:
    """Epochs become the steps that preflight counted."""
    if findings.preflight is None or plan.hyperparameters.steps is not None:
        return plan.hyperparameters
    return plan.hyperparameters.model_copy(update={"epochs": None, "steps": findings.preflight.steps})
