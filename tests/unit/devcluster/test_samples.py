"""Samples: what the demo evaluates, and their cache, in which each is made once and whole."""

from pathlib import Path
from threading import Barrier, Thread

import pytest

from devcluster import samples
from devcluster.samples import SampleFolder, folder_of
from finetune_operator.results.comparison.bootstrap import FEWEST_DIFFERING, FEWEST_ROWS


def test_processes_that_make_a_sample_at_the_same_time_all_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(samples, "cache_dir", lambda: tmp_path)
    meet = Barrier(2)

    def make(folder: Path) -> None:
        folder.mkdir()
        meet.wait(10)
        (folder / "file").write_text("content")

    item = SampleFolder(title="a sample", uri="gs://bucket.invalid/sample", make=make)
    found: list[Path] = []
    threads = [Thread(target=lambda: found.append(folder_of(item))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "samples" / "bucket.invalid-sample"] * 2
    assert (found[0] / "file").read_text() == "content"
    assert [each.name for each in (tmp_path / "samples").iterdir()] == ["bucket.invalid-sample"]


def test_a_sample_that_could_not_be_made_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(samples, "cache_dir", lambda: tmp_path)

    def make(folder: Path) -> None:
        folder.mkdir()
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        folder_of(SampleFolder(title="a sample", uri="gs://bucket.invalid/sample", make=make))
    assert list((tmp_path / "samples").iterdir()) == []


def test_the_demo_evaluates_enough_different_rows_for_its_report_to_show_that_the_difference_is_real(
    tmp_path: Path,
) -> None:
    samples.CAPITALS.make(tmp_path)
    rows = (tmp_path / "eval.jsonl").read_text().splitlines()
    assert len(rows) == 64
    assert len(set(rows)) >= 24 > FEWEST_ROWS > FEWEST_DIFFERING
