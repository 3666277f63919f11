"""The manifest of an exported folder: its files with size and SHA-256. Pure.

Tenants write it, so a name is accepted only if it means one file inside the folder on every operating system.
"""

import hashlib
import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from finetune_operator.results.lines import fault_of

#: Name of the manifest in its folder, and bytes of the largest that is read: 20,000 files need some 4 MB.
MANIFEST = "manifest.json"
MANIFEST_LIMIT = 8 * 2**20
#: Ends the name of a file that is being downloaded.
PARTIAL = ".partial"
_FILES = 20_000
#: With room for PARTIAL in the 255 bytes of a name. No "~", which abbreviates names on Windows.
_SEGMENT = re.compile(r"[A-Za-z0-9._=+@-]{0,199}[A-Za-z0-9_=+@-]")
_DEEPEST = 16
#: Names that Windows reserves for devices, with any extension.
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)

ExportKind = Literal["HuggingFace", "Adapter", "OrbaxParams"]


class ManifestError(ValueError):
    """The manifest cannot be used; the text states why, without control characters."""


class ManifestFile(BaseModel):
    """A file of an export."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    path: Annotated[str, Field(min_length=1, max_length=512)]
    """Relative to the folder, with ``/`` between names."""
    size: Annotated[int, Field(ge=0, le=2**53)]
    """In bytes."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ModelManifest(BaseModel):
    """The list of an export's files, without the manifest itself."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    format: Literal["tpu-finetune.dev/model-manifest/v1"]
    kind: ExportKind
    files: Annotated[list[ManifestFile], Field(min_length=1, max_length=_FILES)]

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Returns the manifest. Raises ManifestError if it is not one, or if a name in it is not safe."""
        try:
            manifest = cls.model_validate_json(content)
        except ValidationError as error:
            raise ManifestError(fault_of(error)) from None
        _require_safe([each.path for each in manifest.files])
        return manifest

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(each.size for each in self.files)


def is_safe(path: str) -> bool:
    """Whether a relative path from a store means one file inside a folder, and none that a download uses itself."""
    return _fault(path) is None


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _require_safe(paths: list[str]) -> None:
    files: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        if (fault := _fault(path)) is not None:
            raise ManifestError(f"it names a file {ascii(path)[:120]}, which {fault}")
        # Compared as file systems do that ignore case.
        parts = path.lower().split("/")
        files.add("/".join(parts))
        folders.update("/".join(parts[:end]) for end in range(1, len(parts)))
    if len(files) < len(paths):
        raise ManifestError("it names a file twice, if upper and lower case are not distinguished")
    if both := sorted(files & folders):
        raise ManifestError(f"it names {both[0][:120]!r} as a file and as a folder")


def _fault(path: str) -> str | None:
    """Returns why the name is not safe; None if it is."""
    parts = path.split("/")
    if not all(_SEGMENT.fullmatch(part) for part in parts):
        return "is not a plain relative name"
    if len(parts) > _DEEPEST:
        return f"is more than {_DEEPEST} folders deep"
    if any(_DEVICE.fullmatch(part) for part in parts):
        return "is the name of a device on Windows"
    if parts[-1].lower().endswith(PARTIAL) or path.lower() == MANIFEST:
        return "the download itself uses"
    return None
