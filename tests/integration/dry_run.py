"""What the API server says to a manifest, without storing it: verdict and places of its errors."""

import json
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPSConnection
from typing import Self
from urllib.parse import urlsplit

from finetune_operator.cluster.kubeconfig import read_kubeconfig
from tests.doubles.local_cluster import LocalCluster

_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]*)"')
_RULES_UNASKED = "some validation rules were not checked because the object was invalid"
_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The API server's answer to a manifest."""

    message: str
    """Empty: it is accepted."""
    unknown: frozenset[str] = frozenset()
    """Paths of unknown fields."""
    invalid: frozenset[str] = frozenset()
    """Paths of all other errors."""
    mistyped: frozenset[str] = frozenset()
    """Those of ``invalid`` with a value of another type."""
    partial: bool = False
    """Whether the server has not checked everything: the manifest cannot be read, or rules are not evaluated."""


class DryRun:
    """A client that creates objects with ``dryRun=All`` over one connection."""

    def __init__(self, connection: HTTPSConnection) -> None:
        self._connection = connection

    @classmethod
    @contextmanager
    def on(cls, cluster: LocalCluster) -> Iterator[Self]:
        kubeconfig = read_kubeconfig(str(cluster.kubeconfig))
        chosen = kubeconfig.context(kubeconfig.current, None)
        tls = ssl.create_default_context(cafile=chosen.cluster["certificate-authority"])
        tls.load_cert_chain(chosen.user["client-certificate"], chosen.user["client-key"])
        connection = HTTPSConnection(urlsplit(chosen.cluster["server"]).netloc, context=tls, timeout=60)
        try:
            yield cls(connection)
        finally:
            connection.close()

    def create(self, path: str, manifest: str) -> Verdict:
        """The verdict on a manifest in YAML or JSON; unknown fields are errors, as for kubectl.

        The server reports unknown fields before all others, so it is asked for the others separately.
        """
        verdict = self._posted(path, manifest, "Strict")
        if not verdict.unknown:
            return verdict
        others = self._posted(path, manifest, "Ignore")
        # A value of another type has no fields, and its own error is reported.
        unknown = {
            path
            for path in verdict.unknown
            if not any(path.startswith(f"{place}.") for place in others.mistyped)
        }
        return Verdict(
            message=verdict.message + others.message,
            unknown=frozenset(unknown),
            invalid=others.invalid,
            partial=others.partial,
        )

    def _posted(self, path: str, manifest: str, validation: str) -> Verdict:
        self._connection.request(
            "POST",
            f"{path}?dryRun=All&fieldValidation={validation}",
            manifest.encode(),
            {"Content-Type": "application/yaml"},
        )
        answer = self._connection.getresponse()
        status = json.loads(answer.read())
        if answer.status == HTTPStatus.CREATED:
            return Verdict(message="")
        assert answer.status in _REFUSED, status
        message = status["message"]
        unknown = frozenset(_UNKNOWN_FIELD.findall(message))
        causes = status.get("details", {}).get("causes", ())
        # An integer that is too large is reported a second time, without its field.
        placed = [cause for cause in causes if cause["field"] != "<nil>"]
        return Verdict(
            message=message,
            unknown=unknown,
            invalid=frozenset(map(_place, placed)),
            mistyped=frozenset(map(_place, (c for c in placed if c["reason"] == "FieldValueTypeInvalid"))),
            partial=any(_RULES_UNASKED in cause["message"] for cause in causes) or not (unknown or causes),
        )


def _place(cause: dict[str, str]) -> str:
    """The field of an error; of a repeated item its list."""
    field = cause["field"]
    return field.rpartition("[")[0] if cause["reason"] == "FieldValueDuplicate" else field
