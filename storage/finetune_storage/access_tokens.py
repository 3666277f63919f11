"""Failures to obtain a Google access token: which pass by themselves, and which are refusals.

In a pod the node's metadata server gives tokens. It may not answer in the pod's first seconds or while it restarts, and
passes on how STS and IAM answer.
"""

import os
import re

from google.auth import environment_vars, exceptions

#: What google-auth raises when there is no token.
ERRORS = (
    exceptions.TransportError,
    exceptions.RefreshError,
    exceptions.OAuthError,
    exceptions.DefaultCredentialsError,
)
#: Answers of STS, of IAM and of the metadata server for them that are refusals, in the texts of google-auth's errors.
_REFUSED = re.compile(
    r"""Status: 40[0134]\b|"code": ?40[0134]\b"""
    r"""|["']error["']: ?["'](?!internal_failure|server_error|temporarily_unavailable)"""
)
_METADATA = ("KUBERNETES_SERVICE_HOST", environment_vars.GCE_METADATA_HOST)


def may_come(error: BaseException) -> bool:
    """Whether ``error`` is a missing token that the same call may get later, without any action."""
    if not isinstance(error, ERRORS) or _REFUSED.search(str(error)):
        return False
    silent = any(isinstance(each, exceptions.TransportError) for each in (error, *error.args))
    # Without configured credentials they are expected from the metadata server.
    configured = os.environ.get(environment_vars.CREDENTIALS)
    expected = not configured and any(name in os.environ for name in _METADATA)
    return bool(silent or error.retryable or expected)
