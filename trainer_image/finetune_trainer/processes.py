"""The processes of a stage: how many, which one this is, and how they find each other."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Read from what GKE (or the local node agent) puts into every TPU container's environment."""

    count: int
    index: int
    """Among all processes of all slices. Process 0 alone writes records."""
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

    def join(self, platforms: str) -> None:
        """Connects the processes. From then on JAX's own notifier, not Python, receives SIGTERM.

        On TPU JAX finds coordinator and neighbours itself; on CPU they are stated.
        """
        if self.count == 1:
            return
        import jax

        if "cpu" not in platforms.split(","):
            jax.distributed.initialize()
            return
        if not self.coordinator:
            raise StageError(
                ExitCode.BAD_REQUEST,
                "CoordinatorMissing",
                "several processes on CPU need a coordinator",
                where="JAX_COORDINATOR_ADDRESS",
                saw="nothing",
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

    def leave(self) -> None:
        """Waits for the others and disconnects; without it the first to exit brings the others down."""
        if self.count > 1:
            import jax

            if jax.distributed.is_initialized():
                jax.distributed.shutdown()


def platforms() -> str:
    """JAX's platforms as the environment names them (``cpu``, ``tpu,cpu``), '' to let JAX find out."""
    return os.environ.get("JAX_PLATFORMS", "")
