import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from devcluster import ports
from devcluster.layout import StateFolder


@pytest.fixture(autouse=True)
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that two clusters would choose the same ones."""
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ports, "_SERVERS", range(28_000, 28_200))


def state(tmp_path: Path, name: str) -> StateFolder:
    (tmp_path / name).mkdir(exist_ok=True)
    return StateFolder(tmp_path / name)


def test_clusters_that_start_together_are_given_different_ports(tmp_path: Path) -> None:
    states = [state(tmp_path, str(number)) for number in range(8)]
    with ThreadPoolExecutor() as pool:
        assigned = [port for each in pool.map(ports.assign, states) for port in each.values()]
    assert len({*assigned}) == len(assigned) == 8 * len(ports.NAMES)


def test_a_cluster_keeps_its_ports_unless_another_process_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As few as there can be, and none that another program of this machine uses.
    monkeypatch.setattr(
        ports, "_SERVERS", list(islice(filter(ports._free, range(28_000, 32_000)), len(ports.NAMES) + 1))
    )
    one = state(tmp_path, "one")
    first = ports.assign(one)
    assert ports.assign(one) == first
    with socket.socket() as held:
        held.bind(("127.0.0.1", first["etcd"]))
        held.listen()
        second = ports.assign(one)
    assert [name for name in ports.NAMES if second[name] != first[name]] == ["etcd"]


def test_ports_of_a_cluster_that_never_came_are_free_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_SERVERS", range(28_000, 28_000 + 100))
    ports.assign(state(tmp_path, "one"))
    monkeypatch.setattr(ports, "_STARTING", -1.0)
    for name in ("two", "three", "four", "five", "six", "seven", "eight"):
        ports.assign(state(tmp_path, name))


def test_a_damaged_list_is_begun_anew(tmp_path: Path) -> None:
    ports.assign(state(tmp_path, "one"))
    (tmp_path / "cache/ports.json").write_text("{")
    assert len(ports.assign(state(tmp_path, "two"))) == len(ports.NAMES)
