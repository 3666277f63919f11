"""Texts that are compared with a file. ``UPDATE_SNAPSHOTS=1 pytest …`` writes the files; read the diff then."""

import os
from pathlib import Path


def check(path: Path, text: str) -> None:
    """Fail with a diff where ``text`` is not what the file says."""
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path} is missing; UPDATE_SNAPSHOTS=1 writes it"
    assert text == path.read_text()
