"""Memory that the operator needs to observe a hostile tenant's pods, measured in a separate process."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
#: MiB above what the process uses before it observes a job; the chart's limit is 512Mi, and run folders may take 100.
MOST = 80


async def looked(pods: int, kind: str, *, looks: int = 1, namespaces: int = 1) -> dict[str, Any]:
    module = (sys.executable, "-m", "tests.unit.reconcile.listing_memory")
    server = await asyncio.create_subprocess_exec(*module, "serve", str(pods), kind, stdout=PIPE, cwd=ROOT)
    try:
        assert server.stdout is not None
        port = (await server.stdout.readline()).decode().strip()
        looking = await asyncio.create_subprocess_exec(
            *module, "look", port, str(looks), str(namespaces), stdout=PIPE, cwd=ROOT
        )
        told, _ = await looking.communicate()
    finally:
        server.kill()
        await server.wait()
    found: dict[str, Any] = json.loads(told)
    print(pods, kind, found)
    return found


@pytest.mark.parametrize("whose", ["stranger", "own"])
@pytest.mark.parametrize(("pods", "entries"), [(12, 74_000), (35, 74_000), (16_000, 170)])
async def test_a_look_at_hostile_pods_takes_little(pods: int, entries: int, whose: str) -> None:
    found = await looked(pods, f"{whose}-{entries}")
    # More are unknown, and none of them is kept.
    own = str(pods) if pods < 16_000 else "0"
    assert found["seen"] == ["0" if whose == "stranger" else own]
    assert found["peak"] - found["before"] < MOST


async def test_the_looks_of_several_namespaces_together_take_little() -> None:
    found = await looked(2304, "own-10", looks=8, namespaces=3)
    assert found["seen"] == ["2304"]
    assert found["peak"] - found["before"] < MOST
