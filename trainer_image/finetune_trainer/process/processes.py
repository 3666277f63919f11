"""The processes of a stage: how many, which one this is, how they find each other and how they fail together.

A process that fails would leave the others waiting for it in a collective operation, until the coordinator misses its
heartbeats (100 s) or Kubernetes kills them (at the end of the grace period). So it publishes its failure in JAX's
key-value store; every process has a thread that waits for such a failure and ends the process with the same code.
"""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from finetune_contract import ExitCode
from finetune_contract.failure import PEER_LOST
from finetune_trainer.errors import StageError

_FAILED = "finetune/failed"
#: Milliseconds after which the wait for another process's failure is renewed.
_WAIT_MILLISECONDS = 24 * 3600 * 1000
#: Messages of JAX's runtime (gloo's and gRPC's) that mean that another process does not answer.
_LOST = re.compile(
    r"gloo|connection (?:closed|reset|refused)|socket closed|heartbeat|coordination service|other task|"
    r"\bUNAVAILABLE\b|\bDEADLINE_EXCEEDED\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Read from the environment that GKE (or the local node agent) gives every TPU container."""

    count: int
    index: int
    """Index among all processes of all slices. Only process 0 writes records."""
    coordinator: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Processes":
        hostnames = [name for name in environment.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
        hosts = max(1, len(hostnames))
        slices = int(environment.get("MEGASCALE_NUM_SLICES") or 1)
        worker = int(environment.get("TPU_WORKER_ID") or 0)
        slice_id = int(environment.get("MEGASCALE_SLICE_ID") or 0)
        return cls(
            count=hosts * slices,
            index=slice_id * hosts + worker,
            coordinator=environment.get("JAX_COORDINATOR_ADDRESS"),
        )

    @property
    def first(self) -> bool:
        return self.index == 0

    def join(self, platforms: str, *, agree_on_stops: bool) -> None:
        """Connects the processes.

        With ``agree_on_stops`` JAX's own notifier, not Python, receives SIGTERM from then on, so that all processes
        stop at the same step. On TPU JAX finds the coordinator and its peers itself; on CPU they are passed explicitly.
        """
        if self.count == 1:
            return
        import jax

        jax.config.update("jax_enable_preemption_service", agree_on_stops)
        if "cpu" not in platforms.split(","):
            jax.distributed.initialize()
            return
        if not self.coordinator:
            raise StageError(
                ExitCode.CONTRACT_UNSUPPORTED,
                "CoordinatorMissing",
                "several processes on CPU need a coordinator",
                where="JAX_COORDINATOR_ADDRESS",
                actual="nothing",
                expected="host:port",
                fix="Set it for every process.",
            )
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            self.coordinator,
            num_processes=self.count,
            process_id=self.index,
            coordinator_bind_address=self.coordinator if self.first else None,
        )

    def watch(self, end: Callable[[str], None]) -> None:
        """From now on, calls ``end`` on a separate thread with a failure that another process published."""
        client = self._client()
        if client is not None:
            threading.Thread(
                target=_await_peer_failure, args=(client, end), name="peers", daemon=True
            ).start()

    def barrier(self, name: str) -> None:
        """Waits until every process has reached this point."""
        if self.count > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices(name)

    def broadcast_from_first(self, number: int) -> int:
        """The first process's ``number``, in every process. All must call it; none continues before the first has."""
        if self.count == 1:
            return number
        from jax.experimental import multihost_utils

        return int(multihost_utils.broadcast_one_to_all(number))

    def publish_failure(self, failure: str) -> None:
        """Ends the other processes. The first failure counts. Call it last, once everything is recorded."""
        client = self._client()
        if client is not None:
            with contextlib.suppress(Exception):  # one is published already, or no process is left
                client.key_value_set(_FAILED, failure)

    def peer_failure(self) -> str | None:
        """The failure that another process published; None if there is none."""
        client = self._client()
        if client is None:
            return None
        try:
            word: str = client.key_value_try_get(_FAILED)
        except Exception:  # noqa: BLE001 - JAX raises if no failure is published, or the coordinator is gone
            return None
        return word

    def cause(self, error: BaseException) -> BaseException:
        """The loss of another process, if that caused ``error``; else ``error`` itself."""
        if self.count == 1:
            return error
        from jax.errors import JaxRuntimeError

        if not isinstance(error, JaxRuntimeError) or not _LOST.search(str(error)):
            return error
        return StageError(
            ExitCode.UNAVAILABLE,
            PEER_LOST,
            "another process of this stage does not respond, or ended without an error record",
            where=f"host {self.index} of {self.count}",
            actual=" ".join(str(error).split())[:300],
            fix="No action is needed: the operator determines the cause and retries.",
        )

    def leave(self) -> None:
        """Waits for the others and disconnects; without it the first process to exit brings the others down."""
        if self._client() is not None:
            import jax

            jax.distributed.shutdown()

    def _client(self) -> Any:
        """JAX's connection to the coordinator; None before ``join`` and if there is only one process."""
        if self.count == 1:
            return None
        from jax._src import distributed  # JAX's public interface does not offer the key-value store

        return distributed.global_state.client


def _await_peer_failure(client: Any, end: Callable[[str], None]) -> None:
    while True:
        try:
            word: str = client.blocking_key_value_get(_FAILED, _WAIT_MILLISECONDS)
        except Exception as error:  # noqa: BLE001 - JAX has one type for all
            if "DEADLINE_EXCEEDED" in str(error):
                continue
            return  # disconnected, or the coordinator is gone: then JAX itself ends the process
        end(word)
        return


def platforms() -> str:
    """JAX's platforms as the environment names them (``cpu``, ``tpu,cpu``), '' to let JAX choose."""
    return os.environ.get("JAX_PLATFORMS", "")
