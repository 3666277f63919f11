"""What the supervisor runs: one program with its arguments, environment and readiness endpoint."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One long-running program of the cluster, started as leader of its own process group."""

    name: str
    argv: tuple[str, ...]
    ready_url: str
    """Answers 200 when the program can serve."""
    ready_text: str = ""
    """What the answer must contain, too."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Added to the supervisor's environment; None removes a variable."""
    ready_seconds: float = 60
    grace_seconds: float = 15
    """Seconds from SIGTERM to SIGKILL."""


async def is_ready(session: aiohttp.ClientSession, component: Component, context: ssl.SSLContext) -> bool:
    """Whether the component's readiness endpoint answers as it should now. Never raises."""
    try:
        timeout = aiohttp.ClientTimeout(total=2)
        async with session.get(component.ready_url, ssl=context, timeout=timeout) as answer:
            return answer.status == 200 and component.ready_text in await answer.text()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
