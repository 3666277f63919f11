"""The program ``finetune-stage``, before its stage is imported."""

import sys

from tests.process_one import terminated

ENTRY = "from finetune_trainer.entry import run; run()"


def test_sigterm_during_the_imports_ends_process_1_at_once() -> None:
    """Without a request the program would end with 64."""
    assert terminated([sys.executable, "-P", "-c", ENTRY]) == 143
