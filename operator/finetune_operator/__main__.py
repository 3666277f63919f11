"""``python -P -m finetune_operator``: runs the operator.

Exit codes: 0 stopped by a signal; 1 a fault (leadership lost, watches ended): start it again; 2 it cannot run as
it is set up (settings, credentials, a port that is taken): the message says what to change.
"""

import asyncio
import logging
import sys

from finetune_operator.cluster.connect import NoCredentials
from finetune_operator.runtime.logs import configure
from finetune_operator.runtime.settings import Settings, SettingsError

log = logging.getLogger("finetune_operator")


async def _run(settings: Settings) -> None:
    from finetune_operator.lifecycle.decide import decide
    from finetune_operator.runtime.operator import Operator

    await Operator(settings, decide=decide).run()


def main() -> int:
    try:
        settings = Settings.from_environment()
    except SettingsError as error:
        sys.stderr.write(f"finetune-operator: {error}\n")
        return 2
    configure(settings.log_level, settings.log_format)
    try:
        asyncio.run(_run(settings))
    except (NoCredentials, OSError) as error:
        log.error("cannot start: %s", error)
        return 2
    except Exception:
        log.exception("ended by a fault")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
