"""Copies the files of an export from a store to a local folder, and compares their digests.

Memory is bounded: at most 4 files at a time, each with 2 parts of 2 MiB. An interrupted copy leaves partial files, from
which the next one continues.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from finetune_operator.artifacts.port import ObjectStore, StorageError
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.target_folder import ByteCount, PartialFile, TargetFolder

_FILES, _AHEAD, _PART = 4, 2, 2 * 2**20


async def copy_files(
    store: ObjectStore, uri: str, files: Sequence[PartialFile], target: TargetFolder, progress: ByteCount
) -> None:
    """Completes the files from the folder ``uri``. Raises CliError, StorageError and OSError, the first that occurs."""
    left = deque(files)

    async def worker() -> None:
        while left:
            await _copy(store, uri, left.popleft(), target, progress)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_FILES, len(files))):
                group.create_task(worker())
    except* (CliError, StorageError, OSError) as errors:
        raise errors.exceptions[0] from None


async def _copy(
    store: ObjectStore, folder: str, partial: PartialFile, target: TargetFolder, progress: ByteCount
) -> None:
    file, uri = partial.file, f"{folder}/{partial.file.path}"
    resumed = partial.done > 0
    whole = await _received(store, uri, partial, target, progress)
    if resumed and not whole:
        # What an earlier call has left may be of another export.
        progress(-partial.done)
        partial = PartialFile(file, 0, hashlib.sha256())
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
