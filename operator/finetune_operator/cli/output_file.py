"""Files that commands write as a whole: manifests and HTML pages."""

import os
from contextlib import suppress
from pathlib import Path

from finetune_operator.cli.errors import CliError


def refuse_existing(file: Path) -> None:
    """Raises CliError if there is something at the path."""
    if os.path.lexists(file):
        raise CliError(f"{file} exists already.", fix="Choose another file, or replace it with --force.")


def save(text: str, file: Path, *, force: bool) -> None:
    """Writes the whole file, or nothing. Raises CliError if it exists and ``force`` is false, or cannot be written."""
    if not force:
        refuse_existing(file)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(file)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
