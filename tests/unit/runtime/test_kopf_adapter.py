import asyncio
import getpass
from collections.abc import Mapping
from pathlib import Path

import pytest

from finetune_operator.cluster.connect import ServiceAccountFolder
from finetune_operator.runtime.intake import Intake
from finetune_operator.runtime.kopf_adapter import KopfHost, watches
from finetune_operator.runtime.metrics import Metrics
from finetune_operator.runtime.watches import WatchAges

NO_SERVER: Mapping[str, str] = {}


async def test_watches_start_for_a_user_without_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pod's uid stands in no passwd file."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", nobody)
    host = KopfHost(
        ServiceAccountFolder(tmp_path),
        (),
        Intake(lambda _key: None, Metrics()),
        WatchAges(watches((), kueue=False)),
        NO_SERVER,
        kueue=False,
    )
    started = asyncio.Event()
    running = asyncio.create_task(host.run(started.set))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert started.is_set()
    running.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
