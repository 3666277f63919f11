"""The system's Chromium. ``python -m tests.pages.chromium`` prints its path, and nothing if there is none."""

import shutil

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Returns the path of the browser; None if none is installed."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


if __name__ == "__main__":
    print(chromium() or "")
