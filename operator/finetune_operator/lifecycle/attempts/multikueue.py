"""JobSets that Kueue gives to another cluster: MultiKueue, which the operator does not support.

Pods, nodes and Workloads of the other cluster cannot be observed, and deadlines, hang detection and usage follow from
them. No right shows beforehand that a queue belongs to MultiKueue; Kueue's webhook writes it into the created JobSet.
"""

from finetune_contract import ExitCode, Failure
from finetune_operator.lifecycle.attempts.attempt import Attempt

MULTIKUEUE_UNSUPPORTED = "MultiKueueUnsupported"
#: ``spec.managedBy`` of a JobSet whose pods run in a worker cluster of MultiKueue.
CONTROLLER = "kueue.x-k8s.io/multikueue"


def sent_elsewhere(attempt: Attempt) -> Failure | None:
    """Returns the record of an attempt whose JobSet MultiKueue manages; None for any other."""
    jobset = attempt.jobset
    if jobset is None or jobset.managed_by != CONTROLLER:
        return None
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=MULTIKUEUE_UNSUPPORTED,
        message=f'LocalQueue "{jobset.queue}" belongs to MultiKueue, which runs JobSets in other clusters, where the '
        "operator cannot observe them. The JobSet was deleted.",
        fix="Ask the platform team for a LocalQueue without MultiKueue: raise spec.retry.generation when this one is "
        "changed, or create a new job when the profile names another one.",
    )
