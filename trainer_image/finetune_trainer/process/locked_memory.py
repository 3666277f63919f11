"""How much of the host's memory the process may lock, ``ulimit -l``: libtpu locks what it moves to and from the chips.

Google's privileged images run ``ulimit -l 68719476736`` first. That needs CAP_SYS_RESOURCE, which pods of the standard
*restricted* cannot have; without it a process may go up to the hard limit that the node's container runtime has set.
Whether unprivileged TPU pods need so much is not documented, so a lower limit is only logged.
"""

import logging
import resource

_LOG = logging.getLogger(__name__)
#: The limit that Google's images set, in bytes.
WANTED = 68719476736


def allow_locking() -> None:
    """Raises the limit as far as is possible without privileges. Logs a warning if it stays below ``WANTED``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < WANTED:
        _LOG.warning(
            "this process may lock %d KiB of memory (ulimit -l), and Google's TPU images require %d KiB: if the TPU "
            "cannot be initialised, have the node's container runtime allow more",
            hard // 1024,
            WANTED // 1024,
        )
