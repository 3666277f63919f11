"""``python -P -m finetune_operator`` runs the operator.

It takes no arguments; ``--help`` lists its environment variables.

Exit codes: 0 if stopped by a signal; 1 after a fault (leadership lost, watches ended), so that a restart helps; 2 if
its configuration is invalid (settings, credentials, a port in use), where the message says what to change.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version

if __name__ == "__main__":
    # As process 1 of a container it would not get SIGTERM without a handler, and a rollout that ends it during the
    # imports would wait for the grace period. The operator replaces this handler by its own.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

try:
    import uvloop
except ModuleNotFoundError:
    sys.exit(
        "The operator's process needs more than the finetune command: pip install 'finetune-operator[operator]'"
    )

from finetune_operator.cluster.connect import NoCredentials
from finetune_operator.runtime.logs import configure
from finetune_operator.runtime.settings import Settings, SettingsError, usage

log = logging.getLogger("finetune_operator")

#: Allocations between two collections of garbage, and collections of a generation between two of the next one. An
#: observation and its decision allocate thousands of objects without cycles: the default of 700 collects several times
#: during each, which takes about a tenth of their CPU.
_COLLECTIONS = (10_000, 20, 20)


async def _run(settings: Settings) -> int:
    """Runs the operator and returns the exit code."""
    from finetune_operator.runtime.operator import Operator

    # What the imports have made lives as long as the process: no collection walks it.
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
    code = 0
    try:
        await Operator(settings).run()
    except (NoCredentials, SettingsError, OSError) as error:
        log.error("cannot start: %s", error)
        code = 2
    except Exception:
        log.exception("ended by a fault")
        code = 1
    if asyncio.all_tasks() - {asyncio.current_task()}:
        # The end of the event loop would wait for them, and kopf's may never end.
        logging.shutdown()
        os._exit(code)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="finetune_operator",
        description="Runs the operator in a pod, as the pod's service account. The environment sets it up:",
        epilog=usage(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version("finetune-operator"))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    # Rejects arguments, which would otherwise be ignored.
    _parser().parse_args(arguments)
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        sys.stderr.write(f"finetune-operator: {error}\n")
        return 2
    configure(settings.log_level, settings.log_format)
    return uvloop.run(_run(settings))


if __name__ == "__main__":
    sys.exit(main())
