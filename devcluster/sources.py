"""Which state of the checkout a process runs: a digest over the files that it was started from."""

import hashlib
from collections.abc import Sequence

from devcluster.layout import ROOT

OPERATOR = ("operator", "contract")
CLUSTER = ("devcluster",)
STAGES = ("trainer_image", "contract", "devcluster/agent", "devcluster/pathways")


def digest(folders: Sequence[str]) -> str:
    """Changes when a Python file below one of the ``folders`` does, and from checkout to checkout."""
    state = hashlib.sha256(str(ROOT).encode())
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            state.update(f"{path}\0".encode())
            state.update(path.read_bytes())
    return state.hexdigest()[:16]
