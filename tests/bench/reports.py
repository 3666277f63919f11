"""Size of a report, CPU seconds to make it, and time to load it in a browser, by the number of training steps.

    python -m tests.bench.reports [--steps 100 1000 100000] [--runs 5]

The report is that of a finished job with 200 evaluated rows, from a metrics.jsonl with noisy losses. The browser is
the system's Chromium, headless, with an empty cache each time; "slow": with a processor that is made four times
slower, for a phone. Loading ends with the event ``load``; the first paint is the browser's own entry. Needs Chromium
and npm, as ``make test-pages``.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.pages.chromium import chromium
from tests.pages.reports import page
from tests.unit.comparison.runs import FOLDER, results, rows, run
from tests.unit.report.records import finished, finished_status, metrics_lines
from tests.unit.report.records import measured as metrics_of

ROOT = Path(__file__).parents[2]
_SLOW = 4
_TIMES = """() => {
    const load = performance.getEntriesByType("navigation")[0].loadEventEnd;
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    return [load, paint ? paint.startTime : null];
}"""


def content(steps: int) -> bytes:
    """Returns a metrics.jsonl with losses that fall and scatter."""
    drawn = random.Random(0)
    lines = (
        {**line, "loss": 1.5 + 2 / line["step"] ** 0.3 + drawn.gauss(0, 0.1)} for line in metrics_lines(steps)
    )
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def made(metrics: bytes) -> str:
    measured = rows(200, seed=1, gain=0.2, right=0.7)
    done = run(
        measured=measured, evaluation=results(measured), run_folder=FOLDER, status=finished_status(),
        spec={"model": {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}}, "method": {"type": "SFT"}},
    )  # fmt: skip
    return page(finished(run=done, metrics=metrics_of(metrics)))


def loaded(browser: Any, file: Path, runs: int, *, slower: int) -> tuple[float, float]:
    """Returns the medians of the time until the page is loaded and of the first paint, in milliseconds."""
    found = []
    for _ in range(runs):
        context = browser.new_context()
        opened = context.new_page()
        context.new_cdp_session(opened).send("Emulation.setCPUThrottlingRate", {"rate": slower})
        opened.goto(file.as_uri(), wait_until="load")
        opened.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
        found.append(opened.evaluate(_TIMES))
        context.close()
    load, paint = (statistics.median(column) for column in zip(*found, strict=True))
    return load, paint


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 1000, 100_000])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    installed = subprocess.run(
        [ROOT / "tests/pages/install.sh"], stdout=subprocess.PIPE, text=True, check=True
    )
    sys.path.append(f"{installed.stdout.strip()}/python")
    from playwright.sync_api import sync_playwright

    print(
        "| steps | metrics.jsonl | report | CPU to make it | loaded | first paint | loaded, slow | first paint, slow |"
    )
    print("|---|---|---|---|---|---|---|---|")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        file = Path(folder) / "report.html"
        for steps in options.steps:
            metrics = content(steps)
            before = time.process_time()
            file.write_text(made(metrics), encoding="utf-8")
            seconds = time.process_time() - before
            times = [
                f"{each:.0f} ms"
                for slower in (1, _SLOW)
                for each in loaded(browser, file, options.runs, slower=slower)
            ]
            size = file.stat().st_size / 1e3
            print(
                f"| {steps:,} | {len(metrics) / 1e6:.2f} MB | {size:.0f} kB | {seconds:.1f} s | {' | '.join(times)} |",
                flush=True,
            )
        browser.close()


if __name__ == "__main__":
    main()
