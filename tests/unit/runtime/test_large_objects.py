"""Memory of the watches with a tenant's largest FineTuneJobs, which have 1.3 MB of labels each. The chart's limit is
512Mi, of which the operator itself uses some 100."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from socket import create_connection, socket

import pytest

pytestmark = pytest.mark.slow

#: Maximum MiB beyond what the operator uses without jobs. The run folders of a namespace may use another 100.
MOST = 40


@dataclass(frozen=True, slots=True)
class Measured:
    peak: float
    reported: int
    blocked: float


type Watch = Callable[[int, int], Measured]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Returns a function that watches a server with ``listed`` large jobs, one of which is patched ``events`` times."""
    servers: list[subprocess.Popen[bytes]] = []

    def run(listed: int, events: int) -> Measured:
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        program = [sys.executable, "-m", "tests.unit.runtime.watched_api"]
        servers.append(subprocess.Popen([*program, str(port), str(listed), str(events)]))
        _wait_for(port)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.unit.runtime.watching"),
                *(f"http://127.0.0.1:{port}", str(listed + events), "60"),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env=dict(os.environ),
        )
        return Measured(**json.loads(done.stdout))

    yield run
    for server in servers:
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError


def test_a_large_job_that_is_patched_again_and_again(watch: Watch) -> None:
    measured = watch(1, 40)
    assert measured.reported == 41
    assert measured.peak < MOST


@pytest.mark.parametrize("number", [25, 60])
def test_many_large_jobs_at_a_start(watch: Watch, number: int) -> None:
    measured = watch(number, 0)
    assert measured.reported == number
    assert measured.peak < MOST
