"""A process on TPU raises its limit of locked memory as far as it can without privileges, and reports the rest."""

import logging
import resource

import pytest

from finetune_trainer.process.locked_memory import WANTED, allow_locking

KIB = 1024


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((64 * KIB, 8192 * KIB), (8192 * KIB, 8192 * KIB), "may lock 8192 KiB of memory"),
        ((8192 * KIB, 8192 * KIB), None, "may lock 8192 KiB of memory"),
        ((64 * KIB, WANTED), (WANTED, WANTED), ""),
        ((64 * KIB, resource.RLIM_INFINITY), (resource.RLIM_INFINITY, resource.RLIM_INFINITY), ""),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, ""),
    ],
)
def test_the_limit_is_raised_as_far_as_it_goes(
    before: tuple[int, int],
    after: tuple[int, int] | None,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: made.append(limits))
    with caplog.at_level(logging.WARNING):
        allow_locking()
    assert made == ([after] if after else [])
    assert told in caplog.text
    assert bool(caplog.text) == bool(told)
