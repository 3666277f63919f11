"""A cluster, run folders, and an environment in which nothing of the machine is used."""

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from finetune_operator.cluster import api_server_client
from tests.unit.cli.bad_input.rows import LOCAL
from tests.unit.cli.bad_input.runs import PHASES, job, run_folders
from tests.unit.cli.stand_in import StandIn, stand_in


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No wait between requests, no kubeconfig of the machine, a TensorBoard that ends at once, and Ctrl-C."""
    limits = partial(api_server_client.CallLimits, backoff_seconds=0)
    monkeypatch.setattr(api_server_client, "CallLimits", limits)
    for name in ("KUBECONFIG", "FINETUNE_LEDGER", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "tensorboard").write_text("#!/bin/sh\necho started\n")
    (programs / "tensorboard").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    # It is ignored where the tests run in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folders(tmp_path)


@pytest.fixture
def server(folder: Path) -> Iterator[StandIn]:
    """A cluster with the jobs of the rows."""
    with stand_in(folder) as server:
        for name in PHASES:
            server.put("finetunejobs", job(name, folder))
        server.put("finetuneprofiles", yaml.safe_load(Path(LOCAL).read_text()))
        yield server
