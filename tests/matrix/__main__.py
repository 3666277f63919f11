"""Runs the tests marked `matrix` once for each row of the compatibility matrix, and records what they say.

    python -m tests.matrix                        # every row
    python -m tests.matrix pinned jobset=0.8.2    # these rows

A row is the pinned programs with one project in another release (go/releases.csv), which are built
if they are missing. Each result replaces its row's in results.json beside this file and in the table of
docs/compatibility.md. Exits with 1 if a program can't be built or a test failed.
"""

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from devcluster.build import BuildError
from devcluster.layout import ROOT
from tests.matrix import releases
from tests.matrix.rows import CASES, Row, passed, result, rows, with_result, with_table

RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "compatibility.md"
#: As tests/run starts them; tests marked thorough repeat others.
PYTEST = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "matrix and not thorough", "-q")


def main(names: list[str]) -> int:
    try:
        chosen = rows(names)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    failed = [row.name for row in chosen if not _run(row)]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} rows passed", *failed, sep="\n  ")
    return 1 if failed else 0


def _run(row: Row) -> bool:
    """Builds and tests one row, and records the result. Returns whether it passed."""
    print(f"── {row.name}", flush=True)
    environment = {**os.environ, **row.environment}
    try:
        if row.release:
            releases.ensure(row.release)
    except BuildError as error:
        print(error, file=sys.stderr)
        return False
    programs = [sys.executable, "-m", "devcluster", "build", "--with", "kueue,kwok"]
    if subprocess.run(programs, cwd=ROOT, env=environment, check=False).returncode != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        started = time.monotonic()
        command = [sys.executable, "-m", "pytest", *PYTEST, f"--junitxml={report}", *CASES.values()]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        found = result(
            row,
            report.read_text(),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            seconds=time.monotonic() - started,
        )
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    results = with_result(known, found)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), results))
    return passed(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
