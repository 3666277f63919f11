"""``python -m finetune_operator``, before the operator is imported."""

import sys

from tests.process_one import terminated


def test_sigterm_during_the_imports_ends_process_1_at_once() -> None:
    """Without a service account the program would end with 2."""
    assert terminated([sys.executable, "-P", "-m", "finetune_operator"]) == 0
