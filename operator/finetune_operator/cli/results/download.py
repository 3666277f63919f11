"""``finetune download``: fetches an exported model, adapter or Orbax folder, and compares every file's digest."""

import asyncio
import errno
import shlex
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from finetune_operator.artifacts.port import ObjectStore
from finetune_operator.cli.connect.options import ExportName
from finetune_operator.cli.connect.store import caller_store, explained
from finetune_operator.cli.errors import CliError, task_group
from finetune_operator.cli.results.adapter import read_adapter
from finetune_operator.cli.results.exports import ExportedFolder, open_export
from finetune_operator.cli.results.run_folder import JobRun
from finetune_operator.cli.results.target_folder import ByteCount, PartialFile, TargetFolder
from finetune_operator.results.model_manifest import MANIFEST, ManifestFile, sha256_of


def open_exported(run: JobRun, wanted: ExportName | None) -> ExportedFolder:
    """Returns the folder that a job has exported, as :func:`.exports.open_export` does."""
    return asyncio.run(open_export(run, wanted, caller_store()))


def download(exported: ExportedFolder, folder: Path, *, force: bool, console: Console) -> None:
    """Copies the export to ``folder``; continues what an earlier call has begun.

    The manifest is the last file: a folder with it is complete. On a terminal ``console`` shows the progress. Raises
    CliError; after that, and after Ctrl-C, the next call continues.
    """
    own = ManifestFile(path=MANIFEST, size=len(exported.content), sha256=sha256_of(exported.content))
    target = TargetFolder(folder, [*exported.manifest.files, own], force=force)
    with _local_errors(folder), _shown(console, exported.manifest.size + own.size) as progress:
        missing = target.missing(progress)
        copied = [each for each in missing if each.file is not own]
        if copied:
            with explained():
                asyncio.run(copy_files(caller_store(), exported.uri, copied, target, progress))
        if len(copied) < len(missing):
            with target.writing(own) as stream:
                stream.truncate(0)
                stream.write(exported.content)
            target.finish(own)


def next_commands(run: JobRun, exported: ExportedFolder, folder: Path) -> Iterator[str]:
    """Yields what to do with a downloaded export: commands, and calls of libraries."""
    place, base, rank = shlex.quote(str(folder)), "BASE_MODEL", 16
    job = f"finetune try {run.name}" if run.job else f"finetune try --run {shlex.quote(run.folder.uri)}"
    if exported.name is ExportName.MODEL:
        yield f"vLLM:          vllm serve {place}"
        yield f"transformers:  AutoModelForCausalLM.from_pretrained({str(folder)!r})"
    elif exported.name is ExportName.ADAPTER:
        with suppress(CliError):
            config = read_adapter(folder)
            base, rank = config.repository or base, config.served_rank
        yield f"vLLM:          vllm serve {base} --enable-lora --max-lora-rank {rank} --lora-modules {run.name}={place}"
        yield f"               --generation-config {place} --tokenizer {place}  # to end answers as in training"
        yield f"PEFT:          PeftModel.from_pretrained(base_model, {str(folder)!r})  # of {base}"
    else:
        yield f"MaxText:       load_parameters_path={place}/items, with the settings of README.md"
        return
    yield f"an answer:     {job} 'PROMPT'"


@contextmanager
def _shown(console: Console, total: int) -> Iterator[ByteCount]:
    """Yields a function that takes the number of further bytes."""
    columns = BarColumn(None), DownloadColumn(binary_units=True), TimeRemainingColumn(compact=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("", total=total)
        yield lambda number: shown.advance(task, number)


@contextmanager
def _local_errors(folder: Path) -> Iterator[None]:
    """Converts an OSError of the local disk to a CliError."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise CliError(
            f"{error.filename or folder}: {error.strerror or error}",
            fix="Free space and run the command again; it continues."
            if full
            else "Choose a folder that you may write with --to DIR.",
        ) from error


#: Files at a time, parts of each that are requested ahead, and bytes of a part: memory is bounded.
_FILES, _AHEAD, _PART = 4, 2, 2 * 2**20


async def copy_files(
    store: ObjectStore, uri: str, files: Sequence[PartialFile], target: TargetFolder, progress: ByteCount
) -> None:
    """Completes the files from the folder ``uri``. Raises CliError, StorageError and OSError, the first that occurs."""
    left = deque(files)

    async def worker() -> None:
        while left:
            await _copy(store, uri, left.popleft(), target, progress)

    async with task_group() as group:
        for _ in range(min(_FILES, len(files))):
            group.create_task(worker())


async def _copy(
    store: ObjectStore, folder: str, partial: PartialFile, target: TargetFolder, progress: ByteCount
) -> None:
    file, uri = partial.file, f"{folder}/{partial.file.path}"
    resumed = partial.done > 0
    whole = await _received(store, uri, partial, target, progress)
    if resumed and not whole:
        # What an earlier call has left may be of another export.
        progress(-partial.done)
        partial = PartialFile(file)
        whole = await _received(store, uri, partial, target, progress)
    if not whole:
        target.discard(file)
        raise CliError(
            f"{uri} is not the file that its manifest lists: it has {partial.done:,} bytes and SHA-256 "
            f"{partial.digest.hexdigest()}, not {file.size:,} bytes and {file.sha256}.",
            fix="Run the command again. If the file still differs, it was changed after the export: export again with "
            "`finetune retry NAME --from-stage Export`.",
        )
    target.finish(file)


async def _received(
    store: ObjectStore, uri: str, partial: PartialFile, target: TargetFolder, progress: ByteCount
) -> bool:
    """Appends the rest of the file to the partial file, and returns whether its digest is that of the manifest."""
    with target.writing(partial.file) as stream:
        stream.truncate(partial.done)
        stream.seek(partial.done)
        async with aclosing(_parts(store, uri, partial.done, partial.file.size)) as parts:
            async for part in parts:
                stream.write(part)
                partial.digest.update(part)
                partial.done += len(part)
                progress(len(part))
    return partial.done == partial.file.size and partial.digest.hexdigest() == partial.file.sha256


async def _parts(store: ObjectStore, uri: str, start: int, end: int) -> AsyncGenerator[bytes]:
    """Yields the bytes from ``start`` to ``end`` in order, and requests ahead; fewer if the object ends before."""
    pending: deque[asyncio.Task[bytes | None]] = deque()
    try:
        while pending or start < end:
            while start < end and len(pending) < _AHEAD:
                size = min(_PART, end - start)
                pending.append(asyncio.create_task(store.read_part(uri, start=start, size=size)))
                start += size
            part = await pending.popleft()
            if part is None:
                raise CliError(
                    f"{uri} does not exist, but its manifest lists it.",
                    fix="Export again: `finetune retry NAME --from-stage Export`.",
                )
            yield part
            if len(part) < _PART and pending:
                return  # The object has ended before the size in the manifest.
    finally:
        for request in pending:
            request.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
