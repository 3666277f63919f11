"""The files of a model's folder: which are read, and whether each contains what its name says."""

import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path

from finetune_contract import ExitCode
from finetune_trainer.checkpoints import sparse_files
from finetune_trainer.checkpoints.sparse_files import Read
from finetune_trainer.errors import StageError

#: Chat templates for other purposes beside the main one, as transformers reads and writes them.
_TEMPLATES = "additional_chat_templates/*.jinja"
#: The terms of a model, which its exports have to carry.
LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "Notice*", "USE_POLICY*")
#: Everything but the weights. Other subfolders hold other formats of the same model (original/, onnx/).
_SMALL = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt", "README.md", *LICENCES)
#: Files of a folder that determine the weights, and files that determine the tokens.
MODEL = ("config.json", "*safetensors", "*safetensors.index.json")
TOKENIZER = (
    "tokenizer*",
    "chat_template*",
    _TEMPLATES,
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "vocab.*",
)
#: The small files whose content matters. Others may be anything.
_READ = ("config.json", "generation_config.json", MODEL[-1], *TOKENIZER)
#: Bytes at the beginning of a file that are checked.
HEAD = 512
_LFS = b"version https://git-lfs"
_PAGE = re.compile(rb"\s*<(!doctype|html|head|\?xml|error)\b", re.IGNORECASE)
_BOM = b"\xef\xbb\xbf"


def is_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a file's name matches one of the patterns, slash for slash."""
    return any(
        name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern) for pattern in patterns
    )


def is_small(name: str) -> bool:
    return is_any(name, (*_SMALL, _TEMPLATES))


def require_contents(folder: Path, names: Sequence[str], *, where: str) -> None:
    """Raises ``StageError`` 65 for the first small file that is a Git LFS pointer or a web page.

    ``where`` names the folder in messages.
    """
    for name in names:
        if is_any(name, _READ) and (folder / name).is_file():
            with (folder / name).open("rb") as stream:
                require_content(stream.read(HEAD), f"{where}/{name}")


def require_content(first: bytes, where: str) -> None:
    """Raises ``StageError`` 65 if a file of which these are the first bytes is a Git LFS pointer or a web page."""
    if first.startswith(_LFS):
        size = re.search(rb"^size (\d+)$", first, re.MULTILINE)
        raise StageError(
            ExitCode.BAD_DATA, "GitLfsPointer", "the file is a Git LFS pointer, and its content is missing",
            where=where, actual=f"a pointer to {int(size[1]):,} bytes" if size else "a pointer",
            expected="the content", fix="Run git lfs pull in the clone, and upload its files again.",
        )  # fmt: skip
    if _PAGE.match(first.removeprefix(_BOM)):
        raise _unexpected(where, "the file is a web page or an error message of a server", first)


def require_safetensors(read: Read, size: int, where: str) -> None:
    """Raises ``StageError`` 65 unless a file of ``size`` bytes is a complete safetensors file by its header."""
    first = read(0, min(size, HEAD)) if size else b""
    require_content(first, where)
    if first[8:9] != b"{":
        raise _unexpected(where, "the file is no safetensors file", first)
    values = 8 + int.from_bytes(first[:8], "little")
    whole = (
        values + (sparse_files.values_size(read(8, values)) or size - values) if values <= size else values
    )
    if whole != size:
        raise StageError(
            ExitCode.BAD_DATA, "UnexpectedContent", "the file is incomplete", where=where,
            actual=f"{size:,} bytes", expected=f"{whole:,} bytes by its header", fix="Upload the file again.",
        )  # fmt: skip


def _unexpected(where: str, what: str, first: bytes) -> StageError:
    shown = first[:60].decode("utf-8", "replace").strip() if first else ""
    return StageError(
        ExitCode.BAD_DATA, "UnexpectedContent", what, where=where,
        actual=repr(shown) if first else "an empty file", expected="the content that the name says",
        fix="Download the file again, with a token if its repository requires one, and upload it again.",
    )  # fmt: skip
