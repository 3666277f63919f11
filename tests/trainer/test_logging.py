"""What libraries write to a stage's log."""

import logging

from finetune_trainer.main import OnceEach


def test_a_library_s_warning_is_logged_once_for_each_text() -> None:
    passed = OnceEach()

    def said(message: str, *arguments: object) -> bool:
        return passed.filter(logging.LogRecord("gcsfs", logging.WARNING, "", 1, message, arguments, None))

    assert [said("kind of %s?", "a"), said("kind of %s?", "a"), said("kind of %s?", "b")] == [
        True,
        False,
        True,
    ]
    assert [said("kind of %s?", number) for number in range(2000)] == [True] * 2000
