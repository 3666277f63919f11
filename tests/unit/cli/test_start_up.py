"""What commands import, which decides how fast they start: seconds are in docs/benchmarks.md."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.cli.bad_input.rows import LOCAL, QUICKSTART

#: Runs a command, and prints the modules that it has imported.
PROGRAM = """
import json, sys
from finetune_operator.cli.main import main
try:
    main()
except SystemExit as end:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
    sys.exit(0)
"""
PLAN = ("plan", "-f", QUICKSTART, "--profile", LOCAL)
STATUS = ("status", "bot", "--kubeconfig", "/none")


def modules(words: Sequence[str]) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("--help",), 400),
        (("explain", "MemoryExceeded"), 330),
        (PLAN, 560),
        (("validate", "-f", QUICKSTART), 560),
        (("init", "--model", "a/b", "--dataset", "gs://a/b.jsonl"), 560),
        (STATUS, 560),
        (("list", "--kubeconfig", "/none"), 560),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_number_of_modules_stays_within_its_budget(words: Sequence[str], most: int) -> None:
    assert len(modules(words)) <= most


@pytest.mark.parametrize(
    ("words", "packages"),
    [
        (("--help",), ("kubernetes.aio.client", "google", "aiohttp", "kopf", "pydantic")),
        (PLAN, ("kubernetes.aio.client", "google", "aiohttp", "kopf")),
        (
            STATUS,
            ("kubernetes.client", "kubernetes.config", "google", "requests", "finetune_operator.planning"),
        ),
    ],
    ids=["help", "plan", "status"],
)
def test_nothing_is_imported_that_the_command_does_not_need(
    words: Sequence[str], packages: Sequence[str]
) -> None:
    assert modules(words).isdisjoint(packages)


def test_a_manifest_with_an_error_needs_no_more_than_one_without(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(Path(QUICKSTART).read_text().replace("type: SFT", "type: SFTT"))
    assert modules(("validate", "-f", str(file))) <= modules(("validate", "-f", QUICKSTART))
