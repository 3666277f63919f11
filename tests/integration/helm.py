"""The real helm, from the build cache (built on first use)."""

import subprocess

from devcluster import build
from devcluster.programs import KUBERNETES_VERSION


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs helm with the arguments; the caller checks the exit code."""
    # What helm believes of a cluster that it is not connected to: one built from source believes in 1.20.
    if arguments[0] in {"template", "lint"} and "--kube-version" not in arguments:
        arguments = (*arguments, "--kube-version", KUBERNETES_VERSION)
    program = str(build.ensure()["helm"])
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)
