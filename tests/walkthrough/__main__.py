"""Runs the quickstart on a local cluster of its own and writes the captured blocks of docs/walkthrough.md anew.

    python -m tests.walkthrough [--recording FILE]

``--recording`` keeps what was recorded, so that another selection of fields needs no other run.
"""

import argparse
from pathlib import Path

from devcluster.layout import ROOT
from tests.walkthrough.blocks import BLOCKS
from tests.walkthrough.page import filled
from tests.walkthrough.recording import Recording, record

PAGE = ROOT / "docs" / "walkthrough.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recording", type=Path, help="read from this file; written if it does not exist")
    file: Path | None = parser.parse_args().recording
    if file and file.exists():
        recording = Recording.from_json(file.read_text())
    else:
        recording = record()
        if file:
            file.write_text(recording.to_json())
    PAGE.write_text(filled(PAGE.read_text(), {name: block(recording) for name, block in BLOCKS.items()}))


if __name__ == "__main__":
    main()
