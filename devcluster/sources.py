"""Identifies the state of the checkout that a process runs, by a digest of the files that it was started from."""

import hashlib
from collections.abc import Sequence

from devcluster.layout import ROOT

OPERATOR = ("operator", "contract", "storage")
CLUSTER = ("devcluster",)
STAGES = ("trainer_image", "contract", "storage", "devcluster/agent")


def digest(folders: Sequence[str]) -> str:
    """A digest that changes when a Python file below one of the ``folders`` does, and differs between checkouts."""
    state = hashlib.sha256(str(ROOT).encode())
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            state.update(f"{path}\0".encode())
            state.update(path.read_bytes())
    return state.hexdigest()[:16]
