"""A headless Chromium for the tests of pages. Without it, they are skipped, and the last line says so."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pages.chromium import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: What ``tests/run`` and ``make test-pages`` set to the folder that install.sh prints.
INSTALLED = "FINETUNE_BROWSER"


def missing() -> str | None:
    """Returns what is not installed and how to get it; None if the tests can run."""
    if chromium() is None:
        return "no Chromium: apt-get install chromium"
    if not axe_file().is_file() or find_spec("playwright") is None:
        return "no playwright or axe-core: make test-pages installs them (needs npm)"
    return None


def axe_file() -> Path:
    return Path(os.environ.get(INSTALLED, "none")) / "node_modules" / "axe-core" / "axe.min.js"


def pytest_unconfigure(config: pytest.Config) -> None:
    # After pytest's own last line: tests/run repeats the last line of each suite.
    if (reason := missing()) is not None and not hasattr(config, "workerinput"):
        print(f"SKIPPED: no page was opened in a browser, {reason}")


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    if (reason := missing()) is not None:
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    # As root Chromium starts only without its sandbox. The pages are our own, and every request of theirs is aborted.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    return axe_file().read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for screenshots, which are for people to look at: ``$FINETUNE_SCREENSHOTS``, else a temporary one."""
    given = os.environ.get("FINETUNE_SCREENSHOTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
