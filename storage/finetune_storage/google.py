"""``gs://`` storage, built on google-cloud-storage.

Credentials come from the environment (Workload Identity); with ``STORAGE_EMULATOR_HOST`` none are used.
"""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Any

import requests
import urllib3
from google.api_core import exceptions
from google.api_core.retry import Retry
from google.auth.exceptions import GoogleAuthError
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from requests.adapters import HTTPAdapter

from finetune_storage import access_tokens, calls
from finetune_storage.calls import RetryRule, StoreCall
from finetune_storage.errors import (
    BucketMissing,
    ObjectMissing,
    ObjectTooLarge,
    StorageDenied,
    StorageError,
    StorageUnauthenticated,
    StorageUnavailable,
    TokenUnavailable,
)
from finetune_storage.store import JSON, Entry, StoredBytes, bounded, crc32c_of
from finetune_storage.uris import bucket_path

#: Connections that are kept for later requests: one for each concurrent call of an operator.
_CONNECTIONS = 64
#: Files are downloaded in pieces of this size in bytes, each retried separately, and this many in parallel.
_PIECE = 32 * 2**20
_PIECES_AT_ONCE = 4
#: Bytes of a file that an upload holds in memory and sends again after a broken connection.
_UPLOAD_PIECE = 16 * 2**20
#: Characters of an error's text in one line.
_MESSAGE_LENGTH = 300
_PASSING_STATUS = (408, 429, 500, 502, 503, 504)
_CONNECTION_ERRORS = (
    ConnectionError,
    TimeoutError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,  # of reading stored bytes, which requests does not translate
)


def passes(error: BaseException) -> bool:
    """Whether the same request may succeed later, without any action."""
    if isinstance(error, InvalidResponse):
        return error.response.status_code in _PASSING_STATUS
    if isinstance(error, exceptions.GoogleAPICallError):
        return error.code in _PASSING_STATUS
    return isinstance(error, _CONNECTION_ERRORS) or access_tokens.may_come(error)


def _retry(rule: RetryRule) -> Retry:
    """Returns the retries of one request. Every request here can be repeated."""
    return Retry(
        predicate=passes,
        initial=rule.first,
        maximum=rule.longest,
        multiplier=2.0,
        timeout=min(rule.total, calls.current().left()),
        on_error=rule.retrying,
    )


class GoogleStore:
    """Implements :class:`.store.BlockingStore`, and the transfer of large files. Makes its client at the first call.

    Args:
        retries: of each request. A call that is bound may end sooner.
        advice: follows the service's own message in a StorageDenied.
    """

    def __init__(self, retries: RetryRule, *, advice: str = "") -> None:
        self.retries = retries
        self._advice = advice
        self._client: storage.Client | None = None
        self._making = Lock()

    def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()

    # --- contents -------------------------------------------------------------------------------------------------

    def read(self, uri: str, limit: int | None = None) -> StoredBytes | None:
        if limit is None:
            return self._content(uri)
        content = self._content(uri, limit, end=limit)
        # An empty object has no first byte, and the refusal of the range does not say its version.
        return self._content(uri, limit) if content == b"" and not content.version else content

    def read_part(self, uri: str, start: int, size: int, generation: str | None = None) -> StoredBytes | None:
        # Without a checksum: the store's own is that of the whole object.
        return self._content(uri, size, generation, start=start, end=start + size - 1, checksum=None)

    def _content(
        self, uri: str, limit: float = math.inf, generation: str | None = None, **part: Any
    ) -> StoredBytes | None:
        call = calls.current()
        with calls.served(call), self._requests(uri) as options:
            blob = self._blob(uri, generation)
            buffer = _Bounded(uri, limit, call, whole="start" not in part)
            try:
                # Raw: a small object that is stored compressed could decompress into a large one.
                blob.download_to_file(buffer, raw_download=True, **part, **options)
            except exceptions.NotFound as error:
                if isinstance(absence := _absence(uri, error), BucketMissing):
                    raise absence from error
                return None
            except exceptions.RequestRangeNotSatisfiable:
                # The range begins at the end of the object or beyond.
                return StoredBytes()
            content = buffer.getvalue()
            if len(content) == _total(call.headers):
                # The library compares the checksum of a whole object only where it has not asked for a range.
                _compare_checksum(content, call.headers)
        return StoredBytes.of(
            content,
            _time(call.headers.get("Last-Modified")),
            version=str(blob.generation or ""),
            encoding=blob.content_encoding,
        )

    def write(self, uri: str, content: bytes, content_type: str = JSON) -> None:
        # Replaced as a whole, so a repeat is harmless: retried without a generation precondition.
        with self._requests(uri) as options:
            self._blob(uri).upload_from_string(content, content_type, checksum="crc32c", **options)

    def create(self, uri: str, content: bytes, content_type: str = JSON) -> bool:
        return self.replace(uri, content, content_type, version="0")

    def replace(self, uri: str, content: bytes, content_type: str, version: str) -> bool:
        """Writes the object if it still has that version, "0" for none. Returns False if another writer was first."""
        condition = {"if_generation_match": int(version), "checksum": "crc32c"}
        with self._requests(uri) as options:
            try:
                self._blob(uri).upload_from_string(content, content_type, **condition, **options)
            except exceptions.PreconditionFailed:
                # Also raised if an earlier attempt of this writer succeeded, but its response was lost.
                with suppress(ObjectTooLarge, StorageDenied):
                    return self.read(uri, len(content)) == content
                return False
        return True

    def delete(self, uri: str) -> None:
        with self._requests(uri) as options, suppress(exceptions.NotFound):
            self._blob(uri).delete(**options)

    # --- folders --------------------------------------------------------------------------------------------------

    def names(self, uri: str, *, limit: int, longest: int) -> Sequence[str]:
        folder = bucket_path(uri).key
        # Each page is a request, and none begins once the call is over.
        blobs = self._blobs(uri, max_results=limit + 1, fields="items(name),nextPageToken")
        names = (blob.name.removeprefix(f"{folder}/") for blob in blobs)
        return bounded(uri, names, limit=limit, longest=longest)

    def entries(self, uri: str) -> Iterator[Entry]:
        """Yields every file below the folder, ordered by name; nothing if the folder does not exist."""
        for blob in self._blobs(uri):
            if not blob.name.endswith("/"):  # the Google Cloud console's placeholder for an empty folder
                yield _entry(blob)

    def _blobs(self, uri: str, **pages: Any) -> Iterator[storage.Blob]:
        address = bucket_path(uri)
        prefix = f"{address.key}/" if address.key else ""
        with self._requests(uri) as options:
            try:
                yield from self.client.list_blobs(address.bucket, prefix=prefix, **pages, **options)
            except exceptions.NotFound as error:
                raise BucketMissing(uri, address.bucket) from error

    def stat(self, uri: str) -> Entry | None:
        address = bucket_path(uri)
        with self._requests(uri) as options:
            blob = self.client.bucket(address.bucket).get_blob(address.key, **options)
        return None if blob is None else _entry(blob)

    def require_bucket(self, uri: str) -> None:
        with self._requests(uri) as options:
            self.client.get_bucket(bucket_path(uri).bucket, **options)

    # --- large files ----------------------------------------------------------------------------------------------

    def download(self, uri: str, target: Path, generation: str | None) -> str | None:
        """Copies the object as it is stored and returns its Content-Encoding. ``generation``: as above."""
        # Imported here: the operator has no large files.
        from google.cloud.storage import transfer_manager

        target.parent.mkdir(parents=True, exist_ok=True)
        with self._requests(uri, target) as options:
            blob = self._blob(uri, generation)
            blob.reload(**options)  # fetches size, generation and checksum
            transfer_manager.download_chunks_concurrently(
                blob,
                str(target),
                chunk_size=_PIECE,
                download_kwargs={"raw_download": True, **options},
                worker_type=transfer_manager.THREAD,
                max_workers=_PIECES_AT_ONCE,
            )
        encoding: str | None = blob.content_encoding
        return encoding

    def upload(self, source: Path, uri: str) -> None:
        with self._requests(uri, source) as options:
            blob = self._blob(uri)
            blob.chunk_size = _UPLOAD_PIECE
            blob.upload_from_filename(str(source), checksum="crc32c", **options)

    # --- requests -------------------------------------------------------------------------------------------------

    @contextmanager
    def _requests(self, uri: str, file: Path | None = None) -> Iterator[dict[str, Any]]:
        """Yields the settings of each request of one call. Raises what the requests raise as a StorageError.

        ``file``: the local file that is read or written, whose own errors are raised as they are.
        """
        try:
            yield {"retry": _retry(self.retries)}
        except Exception as error:
            if isinstance(error, OSError) and file is not None and error.filename == str(file):
                raise
            if (failure := self._failure(uri, error)) is None:
                raise
            raise failure from error

    def _failure(self, uri: str, error: Exception) -> StorageError | None:  # noqa: PLR0911  one per case
        """Returns the StorageError for what a request has raised; None if it is no error of the store."""
        detail, token = str(error), _token_error(error)
        match error:
            case exceptions.NotFound():
                return _absence(uri, error)
            case InvalidResponse() if error.response.status_code == HTTPStatus.NOT_FOUND:
                return ObjectMissing(uri)  # a generation deleted between two pieces
            case exceptions.Unauthorized():
                return StorageUnauthenticated(uri, f"no usable Google credentials: {error.message}", detail)
            case exceptions.Forbidden():
                return StorageDenied(uri, f"{error.message} {self._advice}".rstrip(), detail)
            case _ if token and (token is not error or access_tokens.may_come(token)):
                return TokenUnavailable(uri, f"credentials are not available now: {token}", detail)
            case _ if token or isinstance(error, GoogleAuthError):
                return StorageUnauthenticated(uri, f"no usable Google credentials: {token or error}", detail)
            case exceptions.GoogleAPICallError() if not passes(error):
                return StorageError(uri, error.message, detail)
            case (
                exceptions.GoogleAPIError()
                | InvalidResponse()
                | DataCorruption()
                | urllib3.exceptions.HTTPError()
                | OSError()
            ):
                return StorageUnavailable(uri, _short(error), detail)
        return None

    def _blob(self, uri: str, generation: str | None = None) -> storage.Blob:
        address = bucket_path(uri)
        pinned = {} if generation is None else {"generation": int(generation)}
        return self.client.bucket(address.bucket).blob(address.key, **pinned)

    @property
    def client(self) -> storage.Client:
        """The client. The search for credentials is retried: the metadata server may not answer in a pod's first
        seconds."""
        if self._client is None:
            _retry(self.retries)(self._connect)()
        return self._client

    def _connect(self) -> None:
        with self._making:
            if self._client is not None:
                return
            # Others may have waited for the metadata server in the meantime.
            calls.current().left()
            # Objects belong to a bucket, not to a project, and a person's credentials may name none.
            client = storage.Client(project=None)
            session = client._http  # noqa: SLF001  the library's documentation mounts adapters this way
            for mounted in (session, session._auth_request.session):  # noqa: SLF001  the latter requests tokens
                mounted.mount("https://", adapter := _Adapter(self.retries))
                mounted.mount("http://", adapter)
            self._client = client


class _Bounded(io.BytesIO):
    """Buffer that accepts no more than ``limit`` bytes, whatever the server sends. Raises ObjectTooLarge beyond it.

    ``whole``: the limit is that of the object, of which nothing is kept if the server says that it has more.
    """

    def __init__(self, uri: str, limit: float, call: StoreCall, *, whole: bool) -> None:
        super().__init__()
        self._uri, self._limit, self._call, self._whole = uri, limit, call, whole

    def write(self, chunk: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]  # bytes suffice
        self._call.left()
        total = (_total(self._call.headers) or 0) if self._whole else 0
        if max(total, self.tell() + len(chunk)) > self._limit:
            version = self._call.headers.get("X-Goog-Generation", "")
            raise ObjectTooLarge(self._uri, int(self._limit), version)
        return super().write(chunk)


class _Adapter(HTTPAdapter):
    """Keeps each request within its call's time, and registers with the call how to abort it."""

    def __init__(self, retries: RetryRule) -> None:
        super().__init__(pool_maxsize=_CONNECTIONS)
        self._retries = retries

    def send(self, request: requests.PreparedRequest, *_: Any, **settings: Any) -> requests.Response:
        call = calls.current()
        left = call.left()
        # The library's own timeout: one minute for a bucket, less for the metadata server.
        longest = settings.get("timeout")
        connect, read = longest if isinstance(longest, tuple) else (longest, longest)
        settings["timeout"] = urllib3.Timeout(
            connect=min(self._retries.connect, connect or math.inf, left),
            read=min(self._retries.read, read or math.inf, left),
            total=None if left == math.inf else left,
        )
        response = super().send(request, **settings)
        call.headers = response.headers
        # The timeout limits each step of reading the body, but a body may take any number of steps.
        call.stop_by(response.raw.shutdown)
        return response


def _entry(blob: storage.Blob) -> Entry:
    return Entry(
        uri=f"gs://{blob.bucket.name}/{blob.name}",
        size=blob.size or 0,
        updated=blob.updated or datetime.fromtimestamp(0, UTC),
        crc32c=blob.crc32c or "",
        encoding=blob.content_encoding,
        generation=None if blob.generation is None else str(blob.generation),
    )


def _total(headers: Mapping[str, str]) -> int | None:
    """Returns the size of the object of which a response has a part; None if the response does not say it."""
    total = headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isdecimal() else None


def _compare_checksum(content: bytes, headers: Mapping[str, str]) -> None:
    """Raises DataCorruption if the content is not what the response says that the object contains."""
    checksums = dict(part.strip().partition("=")[::2] for part in headers.get("X-Goog-Hash", "").split(","))
    expected = checksums.get("crc32c")
    computed = crc32c_of([content])
    if expected is not None and computed != expected:
        raise DataCorruption(
            None, f"Checksum mismatch: the response has crc32c {computed}, the object {expected}"
        )


def _time(last_modified: str | None) -> datetime | None:
    try:
        time = parsedate_to_datetime(last_modified or "")
    except ValueError:
        return None
    return time if time.tzinfo else None


def _absence(uri: str, error: exceptions.NotFound) -> ObjectMissing:
    # Both are 404, and only the text says that the bucket is missing, not the object.
    text = error.message.lower()
    return (
        BucketMissing(uri, bucket_path(uri).bucket)
        if "bucket" in text and "not exist" in text
        else ObjectMissing(uri)
    )


def _token_error(error: Exception) -> Exception | None:
    """Returns the failure to obtain a token, if that has ended the call."""
    cause = error.cause if isinstance(error, exceptions.RetryError) else error
    return cause if isinstance(cause, access_tokens.ERRORS) else None


def _short(error: Exception) -> str:
    """Returns one line for the status: these libraries nest the history of all retries in one message."""
    cause = error.cause if isinstance(error, exceptions.RetryError) and error.cause else error
    text = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    return text if len(text) <= _MESSAGE_LENGTH else f"{text[: _MESSAGE_LENGTH - 3]}..."
