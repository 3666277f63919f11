"""``python -m devcluster.agent CONFIG``: the node agent, until SIGTERM."""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from devcluster.agent.agent import Agent
from devcluster.agent.logs import LogServer
from devcluster.agent.nodes import LOCAL_NODES
from devcluster.agent.process import clean_up_old_pods, kill_orphaned_processes
from devcluster.agent.warm import WarmServer
from devcluster.kube import Kube
from devcluster.nodeagent import AgentConfig


async def main(config: AgentConfig) -> None:
    """Runs until SIGTERM; then ends all pods, reports that to the API server, and returns."""
    if number := kill_orphaned_processes(Path(config.pods)):
        print(f"killed {number} processes of an earlier agent", flush=True)
    clean_up_old_pods(Path(config.pods))
    done = asyncio.Event()
    for sort in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sort, done.set)
    async with Kube.of(Path(config.kubeconfig)) as kube:
        agent = Agent(config, kube, LOCAL_NODES, _warm(config))
        work = asyncio.create_task(agent.run())
        work.add_done_callback(lambda _: done.set())
        await agent.registered.wait()
        server = await LogServer(agent.pods).start(
            port=config.port, certificate=config.certificate, key=config.key, authority=config.authority
        )
        await done.wait()
        if not work.done():
            await agent.shut_down()
            work.cancel()
        await server.cleanup()
        with contextlib.suppress(asyncio.CancelledError):
            await work


def _warm(config: AgentConfig) -> WarmServer | None:
    if config.warm_image is None:
        return None
    # variables of stage pods that Python or its libraries read once, at their start
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(Path.home()),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "JAX_PLATFORMS": "cpu",
        **config.environment,
    }
    return WarmServer(
        image=config.warm_image,
        environment=environment,
        log=Path(config.pods).parent / "logs" / "warm-server.log",
    )


if __name__ == "__main__":
    asyncio.run(main(AgentConfig.load(Path(sys.argv[1]))))
