"""Memory of train steps: compiled for real, beside the estimate of ``finetune plan``.

    python -m tests.bench.memory [--again] [--table] [NAME …]

``tests/memory_cases.json`` holds the cases and their results. Compiles the named cases (default: those without a
result; with ``--again`` all) with the operator's default flags, one to four minutes of two cores each, and stores each
result at once, so that an interrupted run continues. Then prints a table of all cases with the estimate's errors;
``--table`` prints only that. The compiler's log goes to standard error. Needs libtpu (``make tpu-compiler``).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from devcluster import samples
from devcluster.layout import ROOT
from finetune_operator.catalog.xla_flags import default_libtpu_args
from tests.memory_cases import Case, cases, compile_arguments, described, model_config, record
from tests.unit.planning.compiled_steps import estimated, relative_error


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--again", action="store_true", help="also those with a result")
    parser.add_argument("--table", action="store_true", help="compile nothing")
    options = parser.parse_args()
    for case in (each for part in cases().values() for each in part):
        wanted = case["name"] in options.names if options.names else options.again or "compiled" not in case
        if wanted and not options.table:
            result = _compiled(case)
            record(case, result)
            print(case["name"], result, file=sys.stderr, flush=True)
    print("\n".join(_table()))


def _compiled(case: Case) -> dict[str, Any]:
    """Returns the bytes on each device. Raises SystemExit if the step does not fit or does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(model_config(case["model"])))
        flags = default_libtpu_args(case["slice"].partition(":")[0])
        library = _library()
        started = time.monotonic()
        done = subprocess.run(
            [
                Path(samples.trainer_python()).with_name("finetune-stage"), "compile", "--model", folder,
                *compile_arguments(case),
            ],
            env=os.environ | {"TPU_LIBRARY_PATH": str(library), "LIBTPU_INIT_ARGS": " ".join(flags)},
            stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    answer = json.loads(done.stdout) if done.stdout else {"kind": f"exit code {done.returncode}"}
    if answer["kind"] != "Measured":
        sys.exit(f"{case['name']}: {answer}")
    release = next(library.parent.parent.glob("libtpu-*.dist-info")).stem
    return {
        "peak": answer["peak_bytes"],
        "arguments": answer["arguments_bytes"],
        "temporaries": answer["temporaries_bytes"],
        "seconds": round(time.monotonic() - started),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "libtpu": release.removeprefix("libtpu-"),
    }


def _library() -> Path:
    venv = subprocess.run(
        [ROOT / "trainer_image/install.sh", "tpu"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    return next(Path(venv).glob("lib/*/site-packages/libtpu/libtpu.so"))


def _table() -> Iterator[str]:
    yield "| case | model, method | slice | rows | settings | compiled, GiB | estimate | error, % |"
    yield "|---|---|---|---|---|---|---|---|"
    for part, rows in cases().items():
        known = [case for case in rows if "compiled" in case]
        for case in known:
            peak, guess = case["compiled"]["peak"], estimated(case).peak
            earlier = "*" if "source" in case["compiled"] else ""
            yield (
                f"| {case['name']}{earlier} | {described(case)} | {peak / 2**30:.2f} | {guess / 2**30:.2f} "
                f"| {100 * relative_error(case):+.1f} |"
            )
        errors = [100 * relative_error(case) for case in known]
        yield (
            f"| {part} | {len(errors)} of {len(rows)} compiled: median error {median(map(abs, errors)):.1f} %, "
            f"from {min(errors):+.1f} to {max(errors):+.1f} | | | | | | |"
        )


if __name__ == "__main__":
    main()
