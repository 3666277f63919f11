"""Translates errors of the hub's library to ``StageError``, each with one action for the user."""

from typing import Literal

import httpx
from huggingface_hub import HfApi, constants, errors, get_token

from finetune_contract import ExitCode, HubRef
from finetune_trainer.errors import StageError

type Kind = Literal["model", "dataset"]

_UNAUTHORIZED, _TIMEOUT, _TOO_MANY, _SERVER = 401, 408, 429, 500
#: Status for a commit on top of one that is no longer the last.
_OVERTAKEN = 412
_SET_SECRET = (
    "put a token with read access into a Secret and name the Secret in spec.huggingFaceTokenSecretRef."  # noqa: S105  advice, no secret
)


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later.

    That is so after no answer, too many requests, a server error, or a commit that another one overtook.
    """
    cause = _root(error)
    if isinstance(cause, errors.HfHubHTTPError):
        return _is_passing(cause.response.status_code)
    return isinstance(cause, httpx.TransportError)


def retry_after_seconds(error: BaseException) -> float | None:
    """Seconds that the hub asks clients to wait; None if it does not say."""
    cause = _root(error)
    asked = cause.response.headers.get("Retry-After", "") if isinstance(cause, errors.HfHubHTTPError) else ""
    return float(asked) if asked.isdecimal() else None


def explain(error: Exception, ref: HubRef, kind: Kind, where: str) -> StageError | None:
    """The failure for an error of the hub; None for others. ``where``: the reference's place in the user's spec."""
    cause = _root(error)
    actual = f"{kind} {ref.repo}, revision {ref.revision}"
    if isinstance(error, errors.LocalEntryNotFoundError) and constants.is_offline_mode():
        return StageError(
            ExitCode.INPUT_MISSING, "HubCacheMiss", "the Hub is disabled, and the local cache does not contain this",
            where=where, actual=f"{actual}, in {constants.HF_HUB_CACHE}",
            expected="a filled cache with HF_HUB_OFFLINE=1",
            fix="Fill the cache, or remove HF_HUB_OFFLINE from the profile's pod.env.",
        )  # fmt: skip
    if _unnamed(cause) or isinstance(
        cause, (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError)
    ):
        return _not_available(cause, ref, kind, where, actual)
    if isinstance(cause, errors.HfHubHTTPError):
        status = cause.response.status_code
        if _is_passing(status):
            return _unavailable(where, f"{actual}: {status} from {constants.ENDPOINT}")
        said = cause.response.headers.get("X-Error-Message", "")
        return StageError(
            ExitCode.PERMISSION_DENIED, "HubAccessDenied", "the Hub rejected the request", where=where,
            actual=f"{actual}: {status} {said}".rstrip(), expected="a valid token with read access",
            fix=f"The token may have expired or lack the permission: {_SET_SECRET}",
        )  # fmt: skip
    if isinstance(cause, (httpx.HTTPError, errors.LocalEntryNotFoundError)):
        return _unavailable(where, f"{actual}: {type(cause).__name__} at {constants.ENDPOINT}")
    return None


def _not_available(cause: BaseException, ref: HubRef, kind: Kind, where: str, actual: str) -> StageError:
    if isinstance(cause, errors.GatedRepoError):
        page = ref.repo if kind == "model" else f"datasets/{ref.repo}"
        return StageError(
            ExitCode.PERMISSION_DENIED, "HubAccessDenied",
            f"the {kind} is available only to users who accepted its terms",
            where=where, actual=actual, expected="a token of an account that was granted access",
            fix=f"Accept the terms at {constants.ENDPOINT}/{page}, then {_SET_SECRET}",
        )  # fmt: skip
    if isinstance(cause, errors.RevisionNotFoundError):
        return StageError(
            ExitCode.INPUT_MISSING, "HubRevisionMissing", f"the {kind} has no such revision",
            where=where, actual=actual,
            expected=_known_revisions(ref, kind), fix=f"Correct {where}.revision.",
        )  # fmt: skip
    # The hub answers alike for what does not exist and for what the token, or anyone, may not see.
    return StageError(
        ExitCode.INPUT_MISSING, "HubRepositoryMissing", f"the Hub has no such {kind}, or it is private",
        where=where, actual=f"{actual}, requested {'without a token' if get_token() is None else 'with a token'}",
        expected=f"a {kind} on {constants.ENDPOINT}", fix=f"Correct {where}.repo; if it is private, {_SET_SECRET}",
    )  # fmt: skip


def _unnamed(cause: BaseException) -> bool:
    """Whether the hub refused a request without a token, which is its answer for what does not exist.

    The library detects that itself, but only for https addresses.
    """
    refused = isinstance(cause, errors.HfHubHTTPError) and cause.response.status_code == _UNAUTHORIZED
    return refused and get_token() is None


def _known_revisions(ref: HubRef, kind: Kind) -> str:
    try:
        found = HfApi().list_repo_refs(ref.repo, repo_type=kind)
    except (httpx.HTTPError, OSError):
        return "a branch, tag or commit"
    names = [name.name for name in (*found.branches, *found.tags)]
    return f"a commit, or one of {', '.join(names[:20])}"


def _unavailable(where: str, actual: str) -> StageError:
    return StageError(
        ExitCode.UNAVAILABLE, "HubUnavailable", "the Hub did not respond as expected, even after retries", where=where,
        actual=actual, fix="No action is needed: the operator retries. If you use a mirror, check HF_ENDPOINT.",
    )  # fmt: skip


def _is_passing(status: int) -> bool:
    return status in (_TIMEOUT, _TOO_MANY, _OVERTAKEN) or status >= _SERVER


def _root(error: BaseException) -> BaseException:
    """The error's actual cause.

    The library raises ``LocalEntryNotFoundError`` for anything that kept it from reaching the hub, and RuntimeError for
    anything that kept it from uploading a file; the chained cause has the details.
    """
    wraps = isinstance(error, (errors.LocalEntryNotFoundError, RuntimeError))
    return error.__cause__ if wraps and error.__cause__ else error
