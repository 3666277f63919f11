"""Reads Parquet files: every value becomes a JSON value, in bounded memory.

Times become ISO 8601 text, decimals and UTF-8 bytes text, maps objects. In structs a null stands for a missing key,
because every object of a column has the keys of all rows' objects.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from finetune_trainer.data.files.foreign import refuse_foreign
from finetune_trainer.data.files.json_values import shown
from finetune_trainer.data.files.opening import require_expansion
from finetune_trainer.data.files.parquet_memory import BATCH_BYTES, batch_rows, expanded_size, row_bytes
from finetune_trainer.data.files.parquet_values import Convert, converter
from finetune_trainer.data.row_location import MAX_ROW, DataFile

#: What Arrow raises for values that Python cannot represent, among them times of far years and unknown time zones.
_FAULTS = (ValueError, TypeError, OverflowError, LookupError)


def read_parquet(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the rows of a file. Columns of ``file.ignored`` are not decoded; their values are None."""
    from pyarrow import parquet

    with file.path.open("rb") as stream, _readable(file):
        begin = stream.read(512)
        if not begin.startswith(b"PAR1"):
            refuse_foreign(file, begin, text=False)
        table = parquet.ParquetFile(file.path)
        schema = table.schema_arrow
        ignored = [name for name in schema.names if name in file.ignored]
        converters = {
            field.name: _converter(file, field) for field in schema if field.name not in file.ignored
        }
        names = [*converters, *ignored]
        if len(names) < len(schema.names):
            raise ValueError(f"several columns have the same name: {shown(', '.join(schema.names), 150)}")
        require_expansion(file, expanded_size(table.metadata))
        number = size = 0
        for index in range(table.num_row_groups):
            group = table.metadata.row_group(index)
            row = row_bytes(group, stream)
            if row > 16 * BATCH_BYTES:
                raise ValueError(f"a row may take {row:,} bytes, more than {16 * BATCH_BYTES:,}")
            for batch in table.iter_batches(batch_rows(row), row_groups=[index], columns=[*converters]):
                size += batch.nbytes
                require_expansion(file, size)
                columns = _columns(file, batch, converters, number)
                columns += [[None] * batch.num_rows] * len(ignored)
                for values in zip(*columns, strict=True):
                    number += 1
                    yield number, dict(zip(names, values, strict=True))


@contextmanager
def _readable(file: DataFile) -> Iterator[None]:
    """Raises ``StageError`` 65 for what Arrow cannot read."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, *_FAULTS) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise file.unreadable(
            "UnreadableFile",
            "the file is not complete Parquet data, or of a kind that cannot be read",
            f"{file.uri}: {shown(str(error), 300)}",
            "Write and upload the file again.",
        ) from error


def _converter(file: DataFile, field: Any) -> Convert | None:
    try:
        return converter(field.type)
    except TypeError as error:
        raise file.unreadable(
            "UnreadableFile",
            f'column "{shown(field.name)}" cannot be read: {error}',
            f"{file.uri}: {shown(str(field.type), 100)}",
            f"Write the column as text, or list it under {file.dataset}.columns.ignore.",
        ) from None


def _columns(
    file: DataFile, batch: Any, converters: Mapping[str, Convert | None], number: int
) -> list[list[Any]]:
    """Returns the values of each column of a batch. ``number`` is that of the row before."""
    if batch.nbytes > MAX_ROW:
        for index in range(batch.num_rows):
            if batch.slice(index, 1).nbytes > MAX_ROW:
                raise file.too_large(number + index + 1)
    return [_values(file, name, batch.column(name), convert, number) for name, convert in converters.items()]


def _values(file: DataFile, name: str, column: Any, convert: Convert | None, number: int) -> list[Any]:
    """Returns a column's values as JSON values. Raises ``StageError`` 65 with the row of one that has none."""
    try:
        values: list[Any] = column.to_pylist()
        return [None if value is None else convert(value) for value in values] if convert else values
    except _FAULTS:
        for row, scalar in enumerate(column, start=number + 1):
            try:
                value = scalar.as_py()
                if convert and value is not None:
                    convert(value)
            except _FAULTS as error:
                what = "bytes that are not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
                raise file.place(row).mismatch(
                    f'column "{shown(name)}" has a value that cannot be read',
                    f"Write the column as text, or list it under {file.dataset}.columns.ignore.",
                    actual=f"{shown(what, 150)} in {shown(str(column.type), 100)}",
                ) from None
        raise
