"""Faults that tests inject into a stage: each function is called in the stage's process before the stage begins."""

import errno
import functools
import itertools
import json
import math
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from finetune_trainer.process.stopping import SigtermHandler


def raise_at_step(step: int, kind: str, text: str) -> None:
    """Makes the batch of this step raise an exception of class ``kind`` with the message ``text``."""
    from finetune_trainer.data.batches import TrainBatches

    def batch(original: Callable[..., Any], *arguments: Any) -> Any:
        if arguments[1] == step:
            raise {"ValueError": ValueError, "MemoryError": MemoryError}[kind](text)
        return original(*arguments)

    _wrap(TrainBatches, "batch", batch)


def fixed_save_clock(seconds: float) -> None:
    """Lets ``seconds`` pass between two reads of the clock that decides when to save."""
    from finetune_trainer.training.saving import CheckpointSavePolicy

    looks = itertools.count()
    original = CheckpointSavePolicy.__init__

    def init(self: CheckpointSavePolicy, **named: Any) -> None:
        original(self, **named, clock=lambda: next(looks) * seconds)

    CheckpointSavePolicy.__init__ = init  # type: ignore[method-assign]


def disk_full_at(place: str) -> None:
    """Makes every call of ``package.module:Class.name`` fail as if the disk were full."""

    def act(_: Callable[..., Any], *__: Any, **___: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/scratch/file")

    _wrap(*_found(place), act)


def written_again_at(place: str, file: str) -> None:
    """Rewrites ``file`` with its own bytes before each call of ``package.module:name``."""

    def act(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        Path(file).write_bytes(Path(file).read_bytes())
        return original(*arguments, **named)

    _wrap(*_found(place), act)


def raise_before_joining(text: str) -> None:
    """Makes the process fail before it joins the other processes."""
    from finetune_trainer.process.processes import Processes

    def join(_: Callable[..., Any], *__: Any, **___: Any) -> Any:
        raise ValueError(text)

    _wrap(Processes, "join", join)


def killed_at_step(step: int) -> None:
    """Kills the process without warning at this step, as when it runs out of memory."""
    from finetune_trainer.data.batches import TrainBatches

    def batch(original: Callable[..., Any], *arguments: Any) -> Any:
        if arguments[1] == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    _wrap(TrainBatches, "batch", batch)


def killed_while_saving(step: int) -> None:
    """Kills the process when this step's checkpoint is written completely, just before Orbax commits it."""
    from orbax.checkpoint._src.path.atomicity import AtomicRenameTemporaryPath

    async def finalize(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if arguments[0].get_final().name == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
        return await original(*arguments, **named)

    _wrap(AtomicRenameTemporaryPath, "finalize", finalize)


def stuck_at_step(step: int) -> None:
    """Blocks the process forever at this step's batch; step -1 blocks nothing.

    Hosts report their step almost at once.
    """
    from finetune_trainer.data.batches import TrainBatches
    from finetune_trainer.training import report

    report.HOST_PAUSE_SECONDS = 0.05

    def batch(original: Callable[..., Any], *arguments: Any) -> Any:
        if arguments[1] == step:
            threading.Event().wait()
        return original(*arguments)

    _wrap(TrainBatches, "batch", batch)


def terminated_at(place: str, call: int = 1) -> None:
    """Sends SIGTERM at the ``call``-th call of ``package.module:name`` or ``package.module:Class.name``.

    The call continues once the handler has noted the signal; if the signal ends the process, the call does not
    continue.
    """
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
                    threading.Event().wait()  # the signal ends the process here
        return original(*arguments, **named)

    _wrap(*_found(place), act)


def _found(place: str) -> tuple[Any, str]:
    """Returns the object that holds ``name`` of ``package.module:Class.name``, and ``name``."""
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    holder: Any = import_module(module)
    for part in outer:
        holder = getattr(holder, part)
    return holder, name


def _stoppers() -> list[SigtermHandler]:
    """Returns a list to which every handler that is created from now on is added."""
    made: list[SigtermHandler] = []
    original = SigtermHandler.__init__

    def init(self: SigtermHandler, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        made.append(self)

    SigtermHandler.__init__ = init  # type: ignore[method-assign]
    return made


def _wrap(holder: Any, name: str, act: Callable[..., Any]) -> None:
    original = getattr(holder, name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return act(original, *arguments, **named)

    setattr(holder, name, wrapped)


def keep_what_tunix_keeps() -> None:
    """Makes training run Tunix's own compiled step, which donates only the optimizer's state."""
    from maxtext.trainers.post_train.sft.train_sft import MaxTextPeftTrainer

    from finetune_trainer.training.trainer import FineTuneTrainer

    FineTuneTrainer.jit_train_and_eval_step = MaxTextPeftTrainer.jit_train_and_eval_step  # type: ignore[method-assign]


def without_gradient(stack: str, number: int) -> None:
    """Sets the gradient of layer ``number`` of ``decoder/<stack>`` to zero."""
    import jax
    import optax

    from finetune_trainer.training import session

    def cut(path: Any, update: Any) -> Any:
        inside = jax.tree_util.keystr(path, simple=True, separator="/").startswith(f"decoder/{stack}/")
        return update.at[:, number].set(0) if inside else update

    def optimizer_of(original: Callable[..., Any], *arguments: Any) -> Any:
        made, schedule = original(*arguments)
        cutting = optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(cut, updates))
        return optax.chain(cutting, made), schedule

    _wrap(session, "optimizer_of", optimizer_of)


def terminated_in_evaluation(call: int, times: int, heard: bool = True) -> None:
    """Repeats the batches of the ``call``-th evaluation ``times`` times and, if ``heard``, sends SIGTERM when it
    begins.

    Without ``heard``, another process gets the signal. A single process fails if it draws a third batch; several
    processes need a few more batches until they agree to stop.
    """
    import jax

    from finetune_trainer.evaluation.loss import LossMeter

    calls = itertools.count(1)

    def unless_too_many(batches: Sequence[Any]) -> Iterator[Any]:
        yield from batches[:2]
        raise AssertionError("the evaluation continues after SIGTERM")

    def measure(original: Callable[..., Any], meter: Any, model: Any, batches: Any, **named: Any) -> Any:
        if next(calls) == call:
            batches = list(batches) * times
            if jax.process_count() == 1:
                batches = unless_too_many(batches)
            if heard:
                os.kill(os.getpid(), signal.SIGTERM)
        return original(meter, model, batches, **named)

    _wrap(LossMeter, "measure", measure)


def compiled_beforehand() -> None:
    """Replaces the stage: compiles every program that preflight would compile, and stores it in the cache.

    The programs are those for the job's slice, compiled for this machine's devices in the same way.
    """
    import jax

    from finetune_contract import StageRequest
    from finetune_trainer.compiled.collecting_cache import CollectingCache
    from finetune_trainer.compiled.compile_protocol import Candidate, CompileSuccess
    from finetune_trainer.compiled.compiler import Compiler
    from finetune_trainer.engine import maxtext
    from finetune_trainer.engine.compilation_cache import StorageCompilationCache
    from finetune_trainer.process.processes import Processes
    from finetune_trainer.stages.context import StageContext, late_environment
    from finetune_trainer.stages.slice_programs import programs
    from finetune_trainer.storage import open_store

    late_environment(os.environ)
    request = StageRequest.of_environment(os.environ)
    context = StageContext(
        request=request,
        store=open_store(),
        processes=Processes(count=1, index=0),
        stopper=SigtermHandler(lambda: None),
    )
    plan = context.plan(context.model(weights=False))
    maxtext.prepare(plan)
    collected = CollectingCache.begin(context.scratch)

    class ThisMachine:
        platform = "cpu"

        def devices(self, _: Candidate) -> Any:
            return jax.devices()

        def limit(self, _: Any) -> int:
            return 2**40

        def settings(self, _: Candidate) -> Any:
            return {}

    compiler = Compiler(plan, request, end_ids=context.renderer.end_ids(), target=ThisMachine())
    shape = {"name": "cpu", "family": "cpu", "topology": "4", "hosts": 1, "chips": 4, "devices": 4}
    batch = request.hyperparameters.global_batch_size
    step = Candidate.model_validate({"slice": shape, "mesh": request.mesh, "global_batch": batch})
    kept = StorageCompilationCache(
        os.environ["JAX_COMPILATION_CACHE_DIR"], context.store, first=True, now=context.now
    )
    for program in programs(context, plan, []):
        answer = compiler.answer(step.model_copy(update={"program": program}))
        assert isinstance(answer, CompileSuccess), answer
        for key in collected.take():
            kept.put(key, (context.scratch / key).read_bytes())
    os._exit(0)


def record_shardings(path: str) -> None:
    """Injects no fault: for each array of the model with its adapters, writes one device's share to ``path``."""
    import jax
    from flax import nnx

    from finetune_trainer.training import session

    def with_lora(original: Callable[..., Any], *arguments: Any) -> Any:
        adapted = original(*arguments)
        leaves = jax.tree_util.tree_leaves_with_path(nnx.state(adapted))
        shares = {
            jax.tree_util.keystr(place, simple=True, separator="/"): math.prod(
                leaf.sharding.shard_shape(leaf.shape)
            )
            / leaf.size
            for place, leaf in leaves
        }
        Path(path).write_text(json.dumps(shares))
        return adapted

    _wrap(session, "with_lora", with_lora)


def restored_alone() -> None:
    """Replaces the stage: MaxText loads the converted model onto the devices of all processes."""
    import jax

    from finetune_contract import StageRequest
    from finetune_trainer import families
    from finetune_trainer.conversion.loading import pretrained
    from finetune_trainer.engine import maxtext
    from finetune_trainer.process.processes import Processes
    from finetune_trainer.stages.context import late_environment
    from finetune_trainer.storage import local_path
    from finetune_trainer.training.engine_config import engine_settings

    late_environment(os.environ)
    request = StageRequest.of_environment(os.environ)
    folder = local_path(request.model.uri or "")
    assert folder is not None
    plan = families.read(folder)
    maxtext.prepare(plan)
    processes = Processes.of(os.environ)
    processes.join("cpu", agree_on_stops=False)
    assert jax.device_count() == request.mesh.devices
    made = engine_settings(request, plan, steps=1, platform="cpu", output="")
    config = maxtext.configure(plan, maxtext.SFT, **made, load_parameters_path=str(request.converted))
    model, _ = pretrained(config)
    jax.block_until_ready(jax.tree.leaves(model))
    processes.barrier("restored")
    os._exit(0)


def shards_of(most: int) -> None:
    """Limits an export's files to ``most`` bytes each, and makes their headers be read in pieces."""
    from finetune_trainer.checkpoints import folder, sparse_files

    sparse_files._FIRST = 1000

    assert folder.write_weights.__kwdefaults__ is not None
    folder.write_weights.__kwdefaults__["max_shard_bytes"] = most


def killed_at(place: str, call: int = 1, inside: str = "") -> None:
    """Kills the process at the ``call``-th call of ``package.module:name`` or ``package.module:Class.name``.

    With ``inside``, only calls with an argument that is an address below ``inside`` count.
    """
    calls = itertools.count(1)

    def act(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if (not inside or any(str(each).startswith(inside) for each in arguments)) and next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    _wrap(*_found(place), act)


def small_disk_at(folder: str, size: int) -> None:
    """Mounts a disk of ``size`` bytes at ``folder``, for this process only."""
    user, group = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWNS if user == 0 else os.CLONE_NEWNS | os.CLONE_NEWUSER)
    if user != 0:
        for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(content, encoding="ascii")
    for arguments in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]):
        subprocess.run(["mount", *arguments], check=True)


def libtpu_never_loaded(library: str) -> None:
    """Makes ``library`` available as libtpu's library but its package impossible to import.

    A stage that has loaded the library or tried to import the package does not succeed.
    """
    import sys

    from finetune_trainer.stages.attempt import AttemptRecorder

    imported = []

    class Absent:
        def find_spec(self, name: str, *_: Any) -> None:
            if name.partition(".")[0] == "libtpu":
                imported.append(name)
                raise ModuleNotFoundError(name)

    assert "libtpu" not in sys.modules
    sys.meta_path.insert(0, Absent())  # type: ignore[arg-type]
    os.environ["TPU_LIBRARY_PATH"] = library

    def succeeded(original: Callable[..., Any], *arguments: Any) -> Any:
        assert not imported
        assert "libtpu" not in Path("/proc/self/maps").read_text()
        return original(*arguments)

    _wrap(AttemptRecorder, "succeeded", succeeded)


def step_lowered_for_tpu(told: str) -> None:
    """Replaces training: lowers for TPU its own step and the step that preflight compiles.

    Training's step is lowered for the arrays that it has loaded and for its first batch. The digests of both modules,
    without source locations, are written to ``told``. Attention is MaxText's plain one: the flash kernel depends on the
    devices.
    """
    import hashlib

    from jax._src.cache_key import _canonicalize_ir

    from finetune_contract import StageRequest
    from finetune_trainer import families
    from finetune_trainer.compiled.compile_protocol import Candidate
    from finetune_trainer.compiled.compiler import Compiler, devices_of
    from finetune_trainer.compiled.step import AbstractTraining, mesh_of
    from finetune_trainer.engine.sharding import mesh_context, shard_batch
    from finetune_trainer.storage import local_path
    from finetune_trainer.training import engine_config
    from finetune_trainer.training.session import Session

    request = StageRequest.of_environment(os.environ)
    shape = {"name": "v6e-4", "family": "v6e", "topology": "2x2", "hosts": 1, "chips": 4, "devices": 4}
    batch = request.hyperparameters.global_batch_size
    candidate = Candidate.model_validate({"slice": shape, "mesh": request.mesh, "global_batch": batch})

    class ForTpu:
        def __init__(self, jitted: Any) -> None:
            self._jitted = jitted

        def lower(self, *arguments: Any, **named: Any) -> Any:
            return self._jitted.trace(*arguments, **named).lower(lowering_platforms=("tpu",))

    def digest(lowered: Any) -> str:
        module = lowered.lowered._lowering.stablehlo()
        return hashlib.sha256(_canonicalize_ir(module, False)).hexdigest()

    def run(_: Callable[..., Any], session: Session, batches: Any, *__: Any) -> None:
        trainer = session.trainer
        with mesh_context(session.config, session.mesh):
            step = trainer.jit_step()
            object.__setattr__(step, "jitted_fn", ForTpu(step.jitted_fn))
            batch = shard_batch(batches.batch(0), session.mesh)
            of_stage = digest(step.lower(trainer.model, trainer.optimizer, batch))
        folder = local_path(request.model.uri or "")
        assert folder is not None
        config = Compiler(families.read(folder), request)._configuration(candidate)
        training = AbstractTraining(config, mesh_of(config, devices_of(candidate)), request)
        with training._inside():
            lowered = training._trainer.jit_step().lower(
                training._trainer.model, training._trainer.optimizer, training._batch
            )
        Path(told).write_text(json.dumps({"stage": of_stage, "preflight": digest(lowered)}))
        os._exit(0)

    _wrap(
        engine_config,
        "engine_settings",
        lambda original, *arguments, **named: original(*arguments, **{**named, "platform": "tpu"}),
    )
    _wrap(Session, "run", run)


def records_progress(path: str) -> None:
    """Appends every state of the stage's progress to a file, as lines of JSON; the stage itself writes only some."""
    from finetune_trainer.process.stage_progress import StageProgressReporter

    def schedule(_: Callable[..., Any], reporter: StageProgressReporter) -> None:
        if reporter._writer is not None:
            with Path(path).open("ab") as file:
                file.write(reporter._content() + b"\n")

    _wrap(StageProgressReporter, "_schedule", schedule)
