"""``gs://`` storage, accessed through google-cloud-storage with one retry policy for all requests.

With an emulator (``STORAGE_EMULATOR_HOST``) the client needs no credentials.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import requests
import urllib3
from google.api_core import exceptions, retry
from google.cloud import storage
from google.cloud.storage import transfer_manager
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from finetune_trainer.storage import access_tokens, base, content_encoding
from finetune_trainer.storage import uri as addresses
from finetune_trainer.storage.base import Entry, VersionedContent
from finetune_trainer.storage.uri import GcsAddress

_LOG = logging.getLogger(__name__)
#: Connect and read timeouts of one attempt, and the timeout of all attempts together, in seconds.
_ATTEMPT_SECONDS = (10, 60)
_TOTAL_SECONDS = 300
#: Maximum number of attempts to read a file that is replaced during the read.
_READS = 5
#: Files are downloaded in pieces of this size in bytes, each retried separately, and this many in parallel.
_PIECE = 32 * 2**20
_PIECES_AT_ONCE = 4
#: Bytes of a file that an upload holds in memory and sends again after a broken connection.
_UPLOAD_PIECE = 16 * 2**20
_TRANSIENT = (
    ConnectionError,
    TimeoutError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,  # of reading stored bytes, which requests does not translate
    exceptions.TooManyRequests,
    exceptions.InternalServerError,
    exceptions.BadGateway,
    exceptions.ServiceUnavailable,
    exceptions.GatewayTimeout,
)
_PASSING_STATUS = (408, 429, 500, 502, 503, 504)


def _passing(error: BaseException) -> bool:
    if isinstance(error, InvalidResponse):
        return error.response.status_code in _PASSING_STATUS
    return isinstance(error, _TRANSIENT) or access_tokens.may_come(error)


def _waiting(error: Exception) -> None:
    silent = "the metadata server" if isinstance(error, access_tokens.ERRORS) else "object storage"
    _LOG.warning("%s does not respond, retrying: %s", silent, error)


#: All requests of this module can be repeated: whole-object writes and create-only writes are idempotent.
_RETRY = retry.Retry(
    predicate=_passing,
    initial=0.5,
    maximum=20.0,
    multiplier=2.0,
    timeout=_TOTAL_SECONDS,
    on_error=_waiting,
)


def _connected() -> storage.Client:
    # Without a project, which the metadata server would have to name: objects belong to buckets.
    return storage.Client(project=None)


class GcsBackend:
    """Cloud Storage.

    ``connect`` creates the client at first use, so a stage that only uses ``file://`` needs no credentials. It is
    retried like requests: it looks for the metadata server, which may not answer in a pod's first seconds.
    """

    def __init__(self, connect: Callable[[], storage.Client] = _connected) -> None:
        self._connect = connect
        self._client: storage.Client | None = None

    def read(self, uri: str) -> bytes:
        with _mapped(uri):
            return _stored(self._blob(uri), uri)

    def write(self, uri: str, data: bytes, content_type: str) -> None:
        with _mapped(uri):
            self._blob(uri).upload_from_string(
                data, content_type=content_type, timeout=_ATTEMPT_SECONDS, retry=_RETRY, checksum="crc32c"
            )

    def create(self, uri: str, data: bytes, content_type: str) -> bool:
        with _mapped(uri):
            try:
                self._blob(uri).upload_from_string(
                    data,
                    content_type=content_type,
                    if_generation_match=0,
                    timeout=_ATTEMPT_SECONDS,
                    retry=_RETRY,
                )
            except exceptions.PreconditionFailed:
                return self._holds(uri, data)
            return True

    def read_current(self, uri: str, limit: int) -> VersionedContent | None:
        address = _address(uri)
        for _ in range(_READS):
            with _mapped(uri):
                blob = self.client.bucket(address.bucket).get_blob(
                    address.key, timeout=_ATTEMPT_SECONDS, retry=_RETRY
                )
                if blob is None:
                    return None
                version = str(blob.generation)
                if (blob.size or 0) > limit:
                    return VersionedContent(content=None, version=version)
                with suppress(exceptions.NotFound):  # the object was replaced and this generation deleted
                    # the request specifies the generation of ``blob``
                    return VersionedContent(content=_stored(blob, uri), version=version)
        raise base.unavailable(uri, f"it was replaced {_READS} times while it was being read")

    def replace(self, uri: str, data: bytes, content_type: str, version: str) -> bool:
        with _mapped(uri):
            try:
                self._blob(uri).upload_from_string(
                    data,
                    content_type=content_type,
                    if_generation_match=int(version),
                    timeout=_ATTEMPT_SECONDS,
                    retry=_RETRY,
                    checksum="crc32c",
                )
            except exceptions.PreconditionFailed:
                return self._holds(uri, data)
            return True

    def _holds(self, uri: str, data: bytes) -> bool:
        """Whether the object has this content after a failed precondition.

        The precondition fails if another writer was first, and also if an earlier attempt of this writer succeeded but
        its response was lost.
        """
        current = self.read_current(uri, len(data))
        return current is not None and current.content == data

    def entries(self, uri: str) -> Iterator[Entry]:
        address = _address(uri)
        prefix = f"{address.key}/" if address.key else ""
        with _mapped(uri):
            blobs = self.client.list_blobs(
                address.bucket, prefix=prefix, timeout=_ATTEMPT_SECONDS, retry=_RETRY
            )
            for blob in blobs:
                if not blob.name.endswith("/"):  # the Google Cloud console's placeholder for an empty folder
                    yield _entry(blob)

    def stat(self, uri: str) -> Entry | None:
        address = _address(uri)
        with _mapped(uri):
            blob = self.client.bucket(address.bucket).get_blob(
                address.key, timeout=_ATTEMPT_SECONDS, retry=_RETRY
            )
            return None if blob is None else _entry(blob)

    def download(self, uri: str, target: Path, generation: str | None) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _mapped(uri):
            blob = self._blob(uri, generation)
            blob.reload(timeout=_ATTEMPT_SECONDS, retry=_RETRY)  # fetches size, generation and checksum
            transfer_manager.download_chunks_concurrently(
                blob,
                str(target),
                chunk_size=_PIECE,
                download_kwargs={"timeout": _ATTEMPT_SECONDS, "retry": _RETRY, "raw_download": True},
                worker_type=transfer_manager.THREAD,
                max_workers=_PIECES_AT_ONCE,
            )
        content_encoding.unpack(target, blob.content_encoding, uri)

    def read_range(self, uri: str, start: int, end: int, generation: str | None) -> bytes:
        with _mapped(uri):
            blob = self._blob(uri, generation)
            part: bytes = blob.download_as_bytes(
                start=start, end=end - 1, timeout=_ATTEMPT_SECONDS, retry=_RETRY, raw_download=True
            )
        if packed := content_encoding.compression(blob.content_encoding):
            raise content_encoding.refused(
                uri, f"Content-Encoding: {packed}", "parts of the object cannot be read, because it is stored packed",
                "no Content-Encoding",
            )  # fmt: skip
        return part

    def upload(self, source: Path, uri: str) -> None:
        with _mapped(uri):
            blob = self._blob(uri)
            blob.chunk_size = _UPLOAD_PIECE
            blob.upload_from_filename(str(source), timeout=_ATTEMPT_SECONDS, retry=_RETRY, checksum="crc32c")

    def delete(self, uri: str) -> None:
        with _mapped(uri), suppress(exceptions.NotFound):
            self._blob(uri).delete(timeout=_ATTEMPT_SECONDS, retry=_RETRY)

    def require_bucket(self, uri: str) -> None:
        with _mapped(uri):
            self.client.get_bucket(_address(uri).bucket, timeout=_ATTEMPT_SECONDS, retry=_RETRY)

    @property
    def client(self) -> storage.Client:
        if self._client is None:
            self._client = _RETRY(self._connect)()
        return self._client

    def _blob(self, uri: str, generation: str | None = None) -> storage.Blob:
        address = _address(uri)
        pinned = {} if generation is None else {"generation": int(generation)}
        return self.client.bucket(address.bucket).blob(address.key, **pinned)


def _address(uri: str) -> GcsAddress:
    address = addresses.parse(uri)
    assert isinstance(address, GcsAddress)
    return address


def _stored(blob: storage.Blob, uri: str) -> bytes:
    """The object's content, downloaded as it is stored and unpacked."""
    stored: bytes = blob.download_as_bytes(timeout=_ATTEMPT_SECONDS, retry=_RETRY, raw_download=True)
    return content_encoding.unpacked(stored, blob.content_encoding, uri)


def _entry(blob: storage.Blob) -> Entry:
    return Entry(
        uri=f"gs://{blob.bucket.name}/{blob.name}",
        size=blob.size or 0,
        updated=blob.updated or datetime.fromtimestamp(0, UTC),
        crc32c=blob.crc32c or "",
        compression=content_encoding.compression(blob.content_encoding),
        generation=None if blob.generation is None else str(blob.generation),
    )


@contextmanager
def _mapped(uri: str) -> Iterator[None]:
    try:
        yield
    except exceptions.NotFound as error:
        raise base.missing(uri) from error
    except InvalidResponse as error:
        if error.response.status_code == HTTPStatus.NOT_FOUND:  # a generation deleted between two pieces
            raise base.missing(uri) from error
        raise base.unavailable(uri, str(error)) from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        raise base.denied(uri, str(error)) from error
    except access_tokens.ERRORS as error:
        if access_tokens.may_come(error):
            raise base.without_token(uri, str(error)) from error
        raise base.unidentified(uri, str(error)) from error
    except exceptions.RetryError as error:
        late = isinstance(error.cause, access_tokens.ERRORS)
        raise (base.without_token if late else base.unavailable)(uri, str(error)) from error
    except (exceptions.GoogleAPICallError, DataCorruption, *_TRANSIENT) as error:
        raise base.unavailable(uri, str(error)) from error
