"""Memory of the watches with many jobs, of which most are finished, measured in a separate process."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
JOBS = 2000
#: Maximum MiB for 2,000 jobs with 20,000 children, of which 2,000 belong to unfinished jobs: 13 were measured.
MOST = 25


async def test_finished_jobs_and_their_children_take_no_memory() -> None:
    module = (sys.executable, "-m", "tests.unit.runtime.starting")
    server = await asyncio.create_subprocess_exec(*module, "serve", str(JOBS), stdout=PIPE, cwd=ROOT)
    try:
        assert server.stdout is not None
        port = (await server.stdout.readline()).decode().strip()
        started = await asyncio.create_subprocess_exec(
            *module, "start", port, str(JOBS), stdout=PIPE, cwd=ROOT
        )
        output, _ = await started.communicate()
    finally:
        server.kill()
        await server.wait()
    found = json.loads(output)
    print(found)
    assert found["live"] == JOBS // 10
    assert found["cached children"] == JOBS
    assert found["peak"] - found["before"] < MOST
    assert found["tasks"] < 50
