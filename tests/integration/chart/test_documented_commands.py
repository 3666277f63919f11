"""kubectl and helm as documents call them: the real programs refuse an unknown flag before they show their help."""

import subprocess

import pytest

from devcluster import build
from tests.documents import documented


@pytest.mark.parametrize("program", ["kubectl", "helm"])
def test_the_program_knows_every_command_and_flag(program: str) -> None:
    path = build.ensure()[program]
    wrong = []
    for words in {tuple(each) for each in documented(program)}:
        # What follows -- is for a program in a pod.
        own = words[1 : words.index("--")] if "--" in words else words[1:]
        if own[0] == "finetune":
            continue  # Our plugin's commands are those of finetune.
        done = subprocess.run([path, *own, "--help"], capture_output=True, text=True, check=False, timeout=60)
        if done.returncode or "Usage:" not in done.stdout:
            wrong.append(f"{' '.join(words)}: {done.stderr}")
    assert wrong == []
