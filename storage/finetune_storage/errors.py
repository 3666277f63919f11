"""What a store raises. Each error has its text here, or from the service that refused."""


class StorageError(Exception):
    """The store did not return the expected response. Base class.

    Args:
        uri: the requested URI.
        message: the error in one line, without the URI.
        detail: the text of the library or the system; default: the message.
    """

    def __init__(self, uri: str, message: str, detail: str = "") -> None:
        super().__init__(f"{uri}: {message}")
        self.uri = uri
        self.message = message
        self.detail = detail or message


class StorageUnavailable(StorageError):
    """Timeouts, 408, 429, 500, 502 to 504, connection errors: the state is unknown; try again later."""


class TokenUnavailable(StorageUnavailable):
    """The metadata server is late, restarts or is overloaded, so there is no access token yet."""


class StorageDenied(StorageError):
    """401, 403, a read-only disk: the caller's identity lacks a right."""


class StorageUnauthenticated(StorageDenied):
    """There are no usable credentials, so no identity either."""


class InvalidUri(StorageError):
    """The URI is of no known kind, or its path is not plain."""

    EXPECTED = "gs://bucket/path or file:///path, without empty names, '.' and '..'"

    def __init__(self, uri: str) -> None:
        super().__init__(uri, f"expected {self.EXPECTED}")


class ObjectMissing(StorageError):
    """The object does not exist, or not in the requested generation."""

    def __init__(self, uri: str, message: str = "the file or folder does not exist") -> None:
        super().__init__(uri, message)


class BucketMissing(ObjectMissing):
    """The bucket does not exist, or the caller may not know that it does."""

    def __init__(self, uri: str, bucket: str) -> None:
        super().__init__(uri, f"bucket {bucket} does not exist")


class ObjectTooLarge(StorageError):
    """The object exceeds the caller's limit in bytes. ``version``: that of the object, if the store says it."""

    def __init__(self, uri: str, limit: int, version: str = "") -> None:
        super().__init__(uri, f"the file is larger than the limit of {limit:,} bytes")
        self.version = version


class ListingTooLarge(StorageError):
    """The folder holds more objects than the caller's limit."""

    def __init__(self, uri: str, limit: int) -> None:
        super().__init__(uri, f"the folder contains more files than the limit of {limit:,}")
