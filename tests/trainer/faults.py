"""What goes wrong in a stage, for tests: called in the stage's process before it begins."""

import errno
import functools
import itertools
import os
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from finetune_trainer.stopping import Stopper


def raise_at_step(step: int, kind: str, text: str) -> None:
    """The batch of this step cannot be made."""
    from finetune_trainer.data.batches import TrainBatches

    def batch(original: Callable[..., Any], *arguments: Any) -> Any:
        if arguments[1] == step:
            raise {"ValueError": ValueError, "MemoryError": MemoryError}[kind](text)
        return original(*arguments)

    _wrap(TrainBatches, "batch", batch)


def seconds_a_look(seconds: float) -> None:
    """By the clock that decides when to save so much time passes between two looks at it."""
    from finetune_trainer.training.saving import SaveTimes

    looks = itertools.count()
    original = SaveTimes.__init__

    def init(self: SaveTimes, **named: Any) -> None:
        original(self, **named, clock=lambda: next(looks) * seconds)

    SaveTimes.__init__ = init  # type: ignore[method-assign]


def disk_full_at(place: str) -> None:
    """No space is left at ``package.module:Class.name``."""

    def act(_: Callable[..., Any], *__: Any, **___: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/scratch/file")

    _wrap(*_found(place), act)


def raise_before_joining(text: str) -> None:
    """The process fails before the others know it."""
    from finetune_trainer.processes import Processes

    def join(_: Callable[..., Any], *__: Any, **___: Any) -> Any:
        raise ValueError(text)

    _wrap(Processes, "join", join)


def killed_at_step(step: int) -> None:
    """The process is gone from one moment to the next, as when it runs out of memory."""
    from finetune_trainer.data.batches import TrainBatches

    def batch(original: Callable[..., Any], *arguments: Any) -> Any:
        if arguments[1] == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    _wrap(TrainBatches, "batch", batch)


def killed_while_saving(step: int) -> None:
    """Gone when all of that step's checkpoint is written, and just before it is called whole."""
    from orbax.checkpoint._src.path.atomicity import AtomicRenameTemporaryPath

    async def finalize(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if arguments[0].get_final().name == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
        return await original(*arguments, **named)

    _wrap(AtomicRenameTemporaryPath, "finalize", finalize)


def stuck_at_step(step: int) -> None:
    """The process waits for ever for this step's batch; no other fault, with step -1. Hosts tell where they are at
    once."""
    from finetune_trainer.data.batches import TrainBatches
    from finetune_trainer.training import report

    report.HOST_PAUSE_SECONDS = 0.05

    def batch(original: Callable[..., Any], *arguments: Any) -> Any:
        if arguments[1] == step:
            threading.Event().wait()
        return original(*arguments)

    _wrap(TrainBatches, "batch", batch)


def terminated_at(place: str, call: int = 1) -> None:
    """SIGTERM at the ``call``-th call of ``package.module:name`` or ``package.module:Class.name``. The call goes on when
    the signal was noted; where the signal ends the process, it does so here."""
    heard = _stoppers()
    calls = 0

    def act(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGTERM)
            for stopper in heard:
                stopper._requested.wait()
                if not stopper._deferred:
                    threading.Event().wait()  # the process ends here
        return original(*arguments, **named)

    _wrap(*_found(place), act)


def _found(place: str) -> tuple[Any, str]:
    """What holds the name of ``package.module:Class.name``, and the name."""
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    holder: Any = import_module(module)
    for part in outer:
        holder = getattr(holder, part)
    return holder, name


def _stoppers() -> list[Stopper]:
    """Those that are made from now on."""
    made: list[Stopper] = []
    original = Stopper.__init__

    def init(self: Stopper, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        made.append(self)

    Stopper.__init__ = init  # type: ignore[method-assign]
    return made


def _wrap(holder: Any, name: str, act: Callable[..., Any]) -> None:
    original = getattr(holder, name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return act(original, *arguments, **named)

    setattr(holder, name, wrapped)


def keep_what_tunix_keeps() -> None:
    """Training runs Tunix's own compiled step, which donates the optimizer's state alone."""
    from maxtext.trainers.post_train.sft.train_sft import MaxTextPeftTrainer

    from finetune_trainer.training.trainer import SftTrainer

    SftTrainer.jit_train_and_eval_step = MaxTextPeftTrainer.jit_train_and_eval_step  # type: ignore[method-assign]
