"""``python -m devcluster.pathways server|proxy_server FLAGS``: what the images' entry points run, until SIGTERM."""

import asyncio
import os
import sys
from collections.abc import Coroutine, Mapping, Sequence

from devcluster.pathways import flags
from devcluster.pathways.flags import ResourceManagerFlags
from devcluster.pathways.servers import (
    WorkerIdentity,
    WorkerRejectedError,
    run_manager,
    run_proxy,
    run_worker,
)


def chosen(
    image: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> Coroutine[None, None, None]:
    """The server that the image runs with these flags; ``environment`` is set by the node."""
    address = environment["POD_ADDRESS"]
    if image == "proxy_server":
        return run_proxy(flags.proxy(arguments), address)
    found = flags.server(arguments)
    if isinstance(found, ResourceManagerFlags):
        return run_manager(found, address)
    return run_worker(found, address, _place(environment))


def _place(environment: Mapping[str, str]) -> WorkerIdentity:
    return WorkerIdentity(
        slice_number=int(environment["MEGASCALE_SLICE_ID"]),
        host=int(environment["TPU_WORKER_ID"]),
        hosts=len(environment["TPU_WORKER_HOSTNAMES"].split(",")),
    )


if __name__ == "__main__":
    try:
        asyncio.run(chosen(sys.argv[1], sys.argv[2:], os.environ))
    except (WorkerRejectedError, OSError) as error:  # OSError: its port is taken
        sys.exit(str(error))
