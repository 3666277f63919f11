"""``gs://`` through google-cloud-storage, whose calls block: they run in a small pool of threads."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from urllib.parse import urlsplit

import requests
from google.api_core import exceptions as api_errors
from google.auth import exceptions as auth_errors
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

from finetune_operator.artifacts.port import (
    NAME_LENGTH,
    NAMES_LIMIT,
    RECORD_LIMIT,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    TooLarge,
    TooManyNames,
)

#: (connect, read) of one HTTP request, seconds.
_REQUEST_TIMEOUT = (5, 10)
#: All tries of one call together. Beyond it the work queue waits, and the status says so meanwhile.
_RETRY = DEFAULT_RETRY.with_delay(initial=0.2, maximum=2).with_timeout(10)


class GoogleStore:
    """Implements :class:`finetune_operator.artifacts.port.Store`.

    Credentials are the environment's (Workload Identity); with ``STORAGE_EMULATOR_HOST`` there are none.
    """

    def __init__(self, *, threads: int = 8, deadline_seconds: float = 20) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="gs")
        self._deadline = deadline_seconds
        self._client: storage.Client | None = None
        self._making = Lock()

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        bucket, name = _split(uri)

        def work() -> bytes | None:
            blob = self._connected().bucket(bucket).blob(name)
            try:
                content = bytes(blob.download_as_bytes(end=limit, timeout=_REQUEST_TIMEOUT, retry=_RETRY))
            except api_errors.NotFound as error:
                _raise_if_bucket_is_missing(uri, bucket, error)
                return None
            except api_errors.RequestRangeNotSatisfiable:
                # No byte of an empty object lies in any range.
                return b""
            if len(content) > limit:
                raise TooLarge(uri, limit)
            return content

        return await self._run(uri, work)

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        bucket, folder = _split(uri)
        prefix = f"{folder}/" if folder else ""

        def work() -> Sequence[str]:
            blobs = self._connected().list_blobs(
                bucket,
                prefix=prefix,
                max_results=limit + 1,
                fields="items(name),nextPageToken",
                timeout=_REQUEST_TIMEOUT,
                retry=_RETRY,
            )
            try:
                names = [blob.name.removeprefix(prefix) for blob in blobs]
            except api_errors.NotFound as error:
                raise StorageError(uri, f"there is no bucket {bucket}") from error
            if len(names) > limit:
                raise TooManyNames(uri, limit)
            return sorted(name for name in names if len(name) <= NAME_LENGTH)

        return await self._run(uri, work)

    async def write(self, uri: str, content: bytes) -> None:
        bucket, name = _split(uri)

        def work() -> None:
            blob = self._connected().bucket(bucket).blob(name)
            # Small and whole, so a repeat is harmless: retried without a generation precondition.
            blob.upload_from_string(
                content, content_type="application/json", timeout=_REQUEST_TIMEOUT, retry=_RETRY
            )

        await self._run(uri, work)

    def close(self) -> None:
        """Ends threads and connections; calls under way are finished first."""
        self._pool.shutdown()
        if self._client is not None:
            self._client.close()

    def _connected(self) -> storage.Client:
        # Made in a worker thread: looking for credentials may ask the metadata server.
        with self._making:
            if self._client is None:
                # Otherwise the library asks for each bucket's metadata, in threads that nobody ends and with a
                # right that we do not need, for traces that nobody records.
                os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
                self._client = storage.Client()
            return self._client

    async def _run[T](self, uri: str, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._deadline):
                return await loop.run_in_executor(self._pool, work)
        except StorageError:
            raise
        except TimeoutError as error:
            raise StorageUnavailable(uri, f"no answer in {self._deadline:.0f} s") from error
        except (api_errors.Forbidden, api_errors.Unauthorized) as error:
            raise StorageDenied(
                uri, f"{error.message} Give the operator's service account roles/storage.objectUser."
            ) from error
        except auth_errors.TransportError as error:
            raise StorageUnavailable(uri, f"credentials cannot be had now: {error}") from error
        except auth_errors.GoogleAuthError as error:
            raise StorageDenied(uri, f"no usable Google credentials: {error}") from error
        except (
            api_errors.RetryError,
            api_errors.ServerError,
            api_errors.TooManyRequests,
            requests.RequestException,
            ConnectionError,
        ) as error:
            raise StorageUnavailable(uri, _short(error)) from error
        except api_errors.GoogleAPICallError as error:
            raise StorageError(uri, error.message) from error


def _split(uri: str) -> tuple[str, str]:
    """Bucket and object name (or folder without slashes at its ends)."""
    parts = urlsplit(uri)
    # A '#' or '?' is part of an object's name, not of URI syntax.
    name = uri.removeprefix(f"gs://{parts.netloc}").strip("/")
    if parts.scheme != "gs" or not parts.netloc:
        raise StorageError(uri, "expected gs://bucket/name")
    return parts.netloc, name


def _raise_if_bucket_is_missing(uri: str, bucket: str, error: api_errors.NotFound) -> None:
    """Object and bucket both answer 404 and only the text tells which: no bucket must not read as no file."""
    if "bucket" in error.message.lower() and "not exist" in error.message.lower():
        raise StorageError(uri, f"there is no bucket {bucket}") from error


def _short(error: Exception) -> str:
    """One line: these libraries nest the whole history of their tries in one message."""
    cause = error.cause if isinstance(error, api_errors.RetryError) and error.cause else error
    text = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
