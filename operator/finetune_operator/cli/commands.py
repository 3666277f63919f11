"""All commands: each module registers its own, in the order in which ``--help`` shows them."""

from finetune_operator.cli import manifest_commands, job_commands, lookup_commands, result_commands  # isort: skip  # noqa: F401
from finetune_operator.cli import edit_commands  # isort: skip  # noqa: F401
from finetune_operator.cli.app import app
from finetune_operator.cli.partial_import import without_init

__all__ = ["app"]

# The packages themselves import 400 further modules: a synchronous client, and the logins of several clouds.
without_init("kubernetes", "kubernetes.aio")
