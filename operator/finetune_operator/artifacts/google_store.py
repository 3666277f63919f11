"""Object store for ``gs://`` URIs, built on google-cloud-storage, whose calls block."""

import io
import os
import re
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from google.api_core import exceptions as api_errors
from google.api_core.retry import Retry
from google.auth import environment_vars
from google.auth import exceptions as auth_errors
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from requests.adapters import HTTPAdapter

from finetune_operator.artifacts.calls import StoreCall
from finetune_operator.artifacts.port import (
    NAME_LENGTH,
    BucketMissing,
    ListingTooLarge,
    ObjectTooLarge,
    StorageDenied,
    StorageError,
    StorageUnauthenticated,
    StorageUnavailable,
    StoredBytes,
)

#: Timeouts of one HTTP request in seconds; shorter if the call ends sooner.
_CONNECT_SECONDS, _READ_SECONDS = 5, 10
#: Connections that are kept for later requests: one for each concurrent call of an operator.
_CONNECTIONS = 64
#: Retries of one call, at most 10 s in total. After that, the work queue waits, and the status reports it.
_RETRY = DEFAULT_RETRY.with_delay(initial=0.2, maximum=2).with_timeout(10)
#: How google-auth reports a refusal by STS or IAM that the metadata server passes on.
_REFUSED = re.compile(r"Status: 40[0134]\b")
#: The call that the current thread serves.
_call: ContextVar[StoreCall] = ContextVar("call")


class GoogleStore:
    """Implements :class:`.shared_store.BlockingStore`.

    Credentials come from the environment (Workload Identity); with ``STORAGE_EMULATOR_HOST`` none are used.

    Args:
        advice: follows the store's own message in a StorageDenied.
        seconds: time limit of one call, from its start.
    """

    def __init__(self, *, advice: str, seconds: float) -> None:
        self.seconds = seconds
        self._advice = advice
        self._client: storage.Client | None = None
        self._making = Lock()

    def read(self, call: StoreCall, uri: str, limit: int) -> bytes | None:
        return self._download(call, uri, limit, end=limit)

    def read_part(self, call: StoreCall, uri: str, start: int, size: int) -> bytes | None:
        # Without a checksum: the store's own is that of the whole object.
        return self._download(call, uri, size, start=start, end=start + size - 1, checksum=None)

    def _download(self, call: StoreCall, uri: str, limit: int, **part: Any) -> bytes | None:
        content = _Bounded(uri, limit, call)
        try:
            # Raw: a small object that is stored compressed could decompress into a large one.
            self._blob(call, uri).download_to_file(content, raw_download=True, retry=_retry(call), **part)
        except api_errors.NotFound as error:
            # Both are 404, and only the text says that the bucket is missing, not the object.
            said = error.message.lower()
            if "bucket" in said and "not exist" in said:
                raise BucketMissing(uri, _split(uri)[0]) from error
            return None
        except api_errors.RequestRangeNotSatisfiable:
            # The range begins at the end of the object or beyond; an empty one has no first byte.
            return b""
        return StoredBytes.of(content.getvalue(), _time(call.last_modified))

    def list(self, call: StoreCall, uri: str, limit: int) -> Sequence[str]:
        bucket, folder = _split(uri)
        prefix = f"{folder}/" if folder else ""
        blobs = self._connected(call).list_blobs(
            bucket,
            prefix=prefix,
            max_results=limit + 1,
            fields="items(name),nextPageToken",
            retry=_retry(call),
        )
        names: list[str] = []
        try:
            # Each page is a request, and none begins once the call is over.
            for seen, blob in enumerate(blobs, start=1):
                if seen > limit:
                    raise ListingTooLarge(uri, limit)
                name = blob.name.removeprefix(prefix)
                if len(name) <= NAME_LENGTH:
                    names.append(name)
        except api_errors.NotFound as error:
            raise BucketMissing(uri, bucket) from error
        return sorted(names)

    def write(self, call: StoreCall, uri: str, content: bytes) -> None:
        # Small and replaced as a whole, so a repeat is harmless: retried without a generation precondition.
        self._upload(call, uri, content)

    def create(self, call: StoreCall, uri: str, content: bytes) -> bool:
        try:
            self._upload(call, uri, content, if_generation_match=0)
        except api_errors.PreconditionFailed:
            return False
        return True

    def _upload(self, call: StoreCall, uri: str, content: bytes, **condition: int) -> None:
        self._blob(call, uri).upload_from_string(
            content, content_type="application/json", retry=_retry(call), **condition
        )

    def _blob(self, call: StoreCall, uri: str) -> storage.Blob:
        bucket, name = _split(uri)
        return self._connected(call).bucket(bucket).blob(name)

    def _connected(self, call: StoreCall) -> storage.Client:
        _call.set(call)
        # Created in a call's thread: the search for credentials may query the metadata server.
        with self._making:
            if self._client is None:
                # Otherwise the library requests each bucket's metadata, in threads that never end and with a
                # permission that the operator does not need, for traces that are not recorded.
                os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
                # Objects belong to a bucket, not to a project, and a person's credentials may name none.
                client = storage.Client(project=None)
                session = client._http  # noqa: SLF001  the library's documentation mounts adapters this way
                for each in (session, session._auth_request.session):  # noqa: SLF001  the latter requests tokens
                    each.mount("https://", adapter := _Adapter(pool_maxsize=_CONNECTIONS))
                    each.mount("http://", adapter)
                self._client = client
            return self._client

    def explained(self, uri: str, error: Exception) -> StorageError | None:  # noqa: PLR0911  one per case
        match error:
            case api_errors.Unauthorized():
                return StorageUnauthenticated(uri, f"no usable Google credentials: {error.message}")
            case api_errors.Forbidden():
                return StorageDenied(uri, f"{error.message} {self._advice}".rstrip())
            case auth_errors.GoogleAuthError() if _token_may_come(error):
                return StorageUnavailable(uri, f"credentials are not available now: {error}")
            case auth_errors.GoogleAuthError():
                return StorageUnauthenticated(uri, f"no usable Google credentials: {error}")
            case (
                api_errors.RetryError()
                | api_errors.ServerError()
                | api_errors.TooManyRequests()
                | requests.RequestException()
                | urllib3.exceptions.HTTPError()
                | OSError()
            ):
                return StorageUnavailable(uri, _short(error))
            case api_errors.GoogleAPICallError():
                return StorageError(uri, error.message)
        return None


class _Bounded(io.BytesIO):
    """Buffer that accepts no more than ``limit`` bytes, whatever the server sends. Raises ObjectTooLarge beyond it."""

    def __init__(self, uri: str, limit: int, call: StoreCall) -> None:
        super().__init__()
        self._uri, self._limit, self._call = uri, limit, call

    def write(self, chunk: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]  # bytes suffice
        self._call.left()
        if self.tell() + len(chunk) > self._limit:
            raise ObjectTooLarge(self._uri, self._limit)
        return super().write(chunk)


class _Adapter(HTTPAdapter):
    """Keeps each request within its call's time, and registers with the call how to abort it."""

    def send(self, request: requests.PreparedRequest, *_: Any, **settings: Any) -> requests.Response:
        call = _call.get()
        left = call.left()
        # Replaces the library's own timeout of one minute.
        settings["timeout"] = urllib3.Timeout(
            connect=min(_CONNECT_SECONDS, left), read=min(_READ_SECONDS, left), total=left
        )
        response = super().send(request, **settings)
        call.last_modified = response.headers.get("Last-Modified")
        # The timeout limits each step of reading the body, but a body may take any number of steps.
        call.stop_by(response.raw.shutdown)
        return response


def _time(last_modified: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(last_modified or "")
    except ValueError:
        return None
    return found if found.tzinfo else None


def _retry(call: StoreCall) -> Retry:
    retry: Retry = _RETRY.with_timeout(min(_RETRY.timeout, call.left()))
    return retry


def _split(uri: str) -> tuple[str, str]:
    """Returns the bucket and the object name (or the folder, without slashes at its ends)."""
    parts = urlsplit(uri)
    # A '#' or '?' is part of an object's name, not URI syntax.
    name = uri.removeprefix(f"gs://{parts.netloc}").strip("/")
    if parts.scheme != "gs" or not parts.netloc:
        raise StorageError(uri, "expected gs://bucket/name")
    return parts.netloc, name


def _token_may_come(error: auth_errors.GoogleAuthError) -> bool:
    """Whether the metadata server is late, restarts or is overloaded, which passes by itself."""
    if isinstance(error, auth_errors.DefaultCredentialsError):
        # Outside of a cluster a person has to log in.
        return "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get(environment_vars.CREDENTIALS)
    silent = any(isinstance(each, auth_errors.TransportError) for each in (error, *error.args))
    return bool(silent or error.retryable) and not _REFUSED.search(str(error))


def _short(error: Exception) -> str:
    """Returns one line for the status: these libraries nest the history of all retries in one message."""
    cause = error.cause if isinstance(error, api_errors.RetryError) and error.cause else error
    text = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
