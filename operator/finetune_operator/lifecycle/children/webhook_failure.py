"""Which webhook the API server could not call.

It calls webhooks before it stores an object, so one that is down refuses every request that it is configured for, while
the API server itself works (k8s.io/apiserver/pkg/util/webhook and pkg/apiserver/conversion).
"""

import re

_FAILED = re.compile(
    r'(?:failed calling webhook "(?P<name>[^"]*)"|(?P<kind>conversion webhook for [^:]*?) failed):\s*'
    r'(?:.*?Post "?https?://(?P<host>[^/"\s?]+)(?:[/?][^"\s]*)?"?:\s*)?(?P<cause>.*)',
    re.DOTALL,
)
_SERVICE = re.compile(r"(?P<name>[^.]+)\.(?P<namespace>[^.]+)\.svc\b.*")
#: Characters that are searched. Tenants can write Events, whose messages have no limit.
_SEARCHED = 2048
#: Controllers whose webhooks every JobSet passes, by a part of the name or namespace of their Services.
_CONTROLLERS = {"kueue": "Kueue's", "jobset": "JobSet's"}


def webhook_failure(message: str) -> str | None:
    """Returns which webhook is down and what to do, from an error or Event of the API server; None if the message is
    about something else, such as a webhook that has answered and refused."""
    failed = _FAILED.search(message[:_SEARCHED])
    if failed is None:
        return None
    called = failed["kind"] or f'webhook "{failed["name"]}"'
    service = _SERVICE.fullmatch(failed["host"] or "")
    if service:
        called += f' (Service "{service["name"]}" in namespace "{service["namespace"]}")'
    elif failed["host"]:
        called += f" at {failed['host']}"
    return (
        f"the API server works, but cannot call {_owner(failed, service)} {called}: "
        f"{failed['cause'].strip().rstrip('.')}. Ask the platform team to repair what serves it; the job then "
        "continues automatically."
    )


def _owner(failed: re.Match[str], service: re.Match[str] | None) -> str:
    where = service[0] if service else ""
    if owner := next((owner for part, owner in _CONTROLLERS.items() if part in where), ""):
        return owner
    if (failed["name"] or "").endswith("jobset.kb.io"):
        # Both controllers give their webhooks for JobSets this name.
        return "JobSet's or Kueue's"
    return "another component's" if service else "the"
