"""The program ``finetune-stage``: ends on SIGTERM from its first moment, while the stage's own modules are imported.

In a container it is process 1, to which the kernel delivers no signal that the process has not asked for: without a
handler, a pod that is deleted during the imports would hold its slice until the grace period ends.
"""

import os
import signal

#: How a shell reports a process that SIGTERM has ended; the operator takes it for a stop with nothing to save.
_ENDED_BY_SIGTERM = 128 + signal.SIGTERM


def run() -> None:
    """Console entry. The stage replaces the handler by its own."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_ENDED_BY_SIGTERM))
    from finetune_trainer.commands.main import run as run_stage

    run_stage()
