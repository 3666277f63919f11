"""Messages of a real API server about webhooks that it could not call."""

import pytest

from finetune_operator.lifecycle.children.webhook_failure import webhook_failure

JOBSET = (
    "https://jobset-webhook-service.jobset-system.svc:443/mutate-jobset-x-k8s-io-v1alpha2-jobset?timeout=10s"
)
KUEUE = (
    "https://kueue-webhook-service.kueue-system.svc:443/mutate-jobset-x-k8s-io-v1alpha2-jobset?timeout=10s"
)
UNTRUSTED = "tls: failed to verify certificate: x509: certificate signed by unknown authority"


@pytest.mark.parametrize(
    ("webhook", "url", "cause", "owner", "place"),
    [
        ("mjobset.kb.io", JOBSET, "dial tcp 10.1.2.3:443: connect: connection refused",
         "JobSet's", ' (Service "jobset-webhook-service" in namespace "jobset-system")'),
        ("mjobset.kb.io", KUEUE, 'no endpoints available for service "kueue-webhook-service"',
         "Kueue's", ' (Service "kueue-webhook-service" in namespace "kueue-system")'),
        ("vjobset.kb.io", "https://hooks.batch.svc:443/validate?timeout=10s", "context deadline exceeded",
         "JobSet's or Kueue's", ' (Service "hooks" in namespace "batch")'),
        ("validate.kyverno.svc-fail", "https://kyverno-svc.kyverno.svc:443/fail", 'service "kyverno-svc" not found',
         "another component's", ' (Service "kyverno-svc" in namespace "kyverno")'),
        ("policy.example.com", "https://policy.example.com/check?timeout=5s", UNTRUSTED,
         "the", " at policy.example.com"),
        ("policy.example.com", "", "could not get REST client: unable to load root certificates", "the", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "prefix", ["POST /apis/jobset.x-k8s.io/v1alpha2/namespaces/a/jobsets: 500 ", "Error creating: "]
)
def test_the_webhook_is_named_with_its_service_and_its_owner(
    prefix: str, webhook: str, url: str, cause: str, owner: str, place: str
) -> None:
    call = f'failed to call webhook: Post "{url}": ' if url else ""
    message = f'{prefix}Internal error occurred: failed calling webhook "{webhook}": {call}{cause}'
    said = webhook_failure(message)
    assert said is not None
    assert said.startswith(
        f'the API server works, but cannot call {owner} webhook "{webhook}"{place}: {cause}. Ask'
    )


def test_a_conversion_webhook_is_named_too() -> None:
    said = webhook_failure(
        "GET /apis/kueue.x-k8s.io/v1beta2/namespaces/a/workloads: 500 conversion webhook for "
        'kueue.x-k8s.io/v1beta1, Kind=Workload failed: Post "https://kueue-webhook-service.kueue-system.svc:443/'
        'convert?timeout=30s": dial tcp 10.1.2.3:443: i/o timeout'
    )
    assert said is not None
    assert "Kueue's conversion webhook for kueue.x-k8s.io/v1beta1, Kind=Workload (Service " in said
    assert '"kueue-webhook-service" in namespace "kueue-system"): dial tcp 10.1.2.3:443: i/o timeout.' in said


@pytest.mark.parametrize(
    "message",
    [
        "",
        'admission webhook "vjobset.kb.io" denied the request: jobset is invalid',
        'pods "a-0" is forbidden: exceeded quota: chips',
        "Internal error occurred: resource quota evaluation timed out",
        "etcdserver: leader changed",
    ],
)
def test_another_error_is_not_one_of_a_webhook_that_is_down(message: str) -> None:
    assert webhook_failure(message) is None


@pytest.mark.timeout(120)
@pytest.mark.parametrize("rest", ["a" * 10**6, "Post http://" * 10**5, "Post http://a/" * 10**5])
def test_a_message_of_any_length_costs_little_time(rest: str) -> None:
    """Tenants can write the Events that are read."""
    for _ in range(100):
        webhook_failure(f'failed calling webhook "x": Post http://{rest}')
