"""All commands: each module registers its own, in the order in which ``--help`` shows them."""

from finetune_operator.cli import manifest_commands, lookup_commands, job_commands, edit_commands  # isort: skip  # noqa: F401
from finetune_operator.cli import result_commands  # isort: skip  # noqa: F401
from finetune_operator.cli.app import app

__all__ = ["app"]
