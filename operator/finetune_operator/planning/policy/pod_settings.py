"""Checks of a profile's ``pod``: labels and annotations that the API server would refuse, or that controllers read."""

from collections.abc import Iterator

from finetune_operator.api.meta import is_key, is_label_value
from finetune_operator.api.profile import PodSettings

_DOMAINS = (".k8s.io", ".x-k8s.io", ".batch.kubernetes.io", ".tpu-finetune.dev")
#: Labels without a domain by which the Job controller finds its pods.
_OF_JOBS = ("job-name", "controller-uid")


def read_by_controllers(key: str) -> bool:
    """Whether a label or annotation is of Kubernetes' own projects, such as Kueue and JobSet, or of this operator.

    On a JobSet or Job it may choose a queue, a priority or nodes.
    """
    domain = key.rpartition("/")[0]
    return key in _OF_JOBS or domain == "kubernetes.io" or f".{domain}".endswith(_DOMAINS)


def pod_faults(pod: PodSettings) -> Iterator[str]:
    """Yields what is wrong, with the path."""
    for place, keys in (
        ("labels", pod.labels),
        ("annotations", pod.annotations),
        ("jobLabels", pod.job_labels),
    ):
        for key in keys or ():
            if not is_key(key):
                yield (
                    f"spec.pod.{place}: {key} is no key that Kubernetes takes: expected up to 63 letters, digits, -, _ "
                    "and . that begin and end with a letter or digit, and before them a domain and / if at all."
                )
    for key, value in (pod.labels or {}).items():
        if not is_label_value(value):
            yield (
                f"spec.pod.labels[{key}]: {value} is no value that Kubernetes takes for a label: expected letters, "
                "digits, -, _ and . that begin and end with a letter or digit. Longer texts fit into annotations."
            )
    for key in pod.job_labels or ():
        if read_by_controllers(key):
            yield (
                f"spec.pod.jobLabels: {key} is read by controllers, so that jobs would choose queues, priorities or "
                "nodes by it: remove it. For Kueue's queue, set queue.allowJobLabels."
            )
