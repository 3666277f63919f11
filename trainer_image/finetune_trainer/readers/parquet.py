"""Reads Parquet files: every value becomes a JSON value, in bounded memory.

A dictionary or a run holds a value once, however many rows have it, so that a file of a few kilobytes may decode to
terabytes. The metadata and the headers of the dictionaries say how many rows can be decoded at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from finetune_trainer.readers.opening import complete, refuse_foreign, require_expansion
from finetune_trainer.readers.parquet_values import Convert, converter
from finetune_trainer.readers.row_location import MAX_ROW, DataFile, shown

#: Rows, and bytes in the worst case, that are decoded at a time.
BATCH_ROWS, BATCH_BYTES = 1024, 256 * 2**20
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
#: What Arrow raises for values that Python cannot represent, among them times of far years and unknown time zones.
_FAULTS = (ValueError, TypeError, OverflowError, LookupError)


def read_parquet(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the rows of a file. Columns of ``file.ignored`` are not decoded; their values are None."""
    import pyarrow
    from pyarrow import parquet

    with file.path.open("rb") as stream, complete(file, "Parquet", pyarrow.ArrowException, OSError, *_FAULTS):
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
        number = 0
        for batch in _batches(file, table, stream, [*converters]):
            _require_row_size(file, batch, number)
            columns = [
                _values(file, name, batch.column(name), convert, number)
                for name, convert in converters.items()
            ]
            columns += [[None] * batch.num_rows] * len(ignored)
            for values in zip(*columns, strict=True):
                number += 1
                yield number, dict(zip(names, values, strict=True))


def _converter(file: DataFile, field: Any) -> Convert | None:
    try:
        return converter(field.type)
    except TypeError as error:
        raise file.unreadable(
            f'column "{shown(field.name)}" cannot be read: {error}',
            f"Write the column as text, or list it under {file.dataset}.columns.ignore.",
            actual=shown(str(field.type), 100),
        ) from None


def _values(file: DataFile, name: str, column: Any, convert: Convert | None, number: int) -> list[Any]:
    """Returns the JSON values of a column, whose first row follows row ``number``."""
    try:
        values: list[Any] = column.to_pylist()
        return [None if value is None else convert(value) for value in values] if convert else values
    except _FAULTS as error:
        if (
            len(column) > 1
        ):  # the whole column is read at once because that is fast; now by row, to find the faulty one
            return [
                _values(file, name, column.slice(row, 1), convert, number + row)[0]
                for row in range(len(column))
            ]
        what = "bytes that are not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise file.place(number + 1).mismatch(
            f'column "{shown(name)}" has a value that cannot be read',
            f"Write the column as text, or list it under {file.dataset}.columns.ignore.",
            actual=f"{shown(what, 150)} in {shown(str(column.type), 100)}",
        ) from None


def _require_row_size(file: DataFile, batch: Any, number: int) -> None:
    if batch.nbytes > MAX_ROW:
        for index in range(batch.num_rows):
            if batch.slice(index, 1).nbytes > MAX_ROW:
                raise file.too_large(number + index + 1)


def _batches(file: DataFile, table: Any, stream: BinaryIO, columns: Sequence[str]) -> Iterator[Any]:
    """Yields the rows in parts of ``BATCH_BYTES``. Raises ValueError for a row that may be sixteen times as large."""
    groups = [table.metadata.row_group(index) for index in range(table.num_row_groups)]
    require_expansion(file, sum(_encoded_size(chunk) for group in groups for chunk in _chunks(group)))
    size = 0
    for index, group in enumerate(groups):
        row = sum(chunk.num_values * (8 + _largest(chunk, stream)) for chunk in _chunks(group)) // max(
            1, group.num_rows
        )
        if row > 16 * BATCH_BYTES:
            raise ValueError(f"a row may take {row:,} bytes, more than {16 * BATCH_BYTES:,}")
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row)))
        for batch in table.iter_batches(rows, row_groups=[index], columns=columns):
            size += batch.nbytes
            require_expansion(file, size)
            yield batch


def _chunks(group: Any) -> list[Any]:
    return [group.column(index) for index in range(group.num_columns)]


def _encoded_size(chunk: Any) -> int:
    """Returns the bytes of a column's values, without those that a dictionary repeats."""
    width = _WIDTHS.get(chunk.physical_type, 0)
    return max(int(chunk.total_uncompressed_size), int(chunk.num_values) * width)


def _largest(chunk: Any, stream: BinaryIO) -> int:
    """Returns the bytes of the largest value that a column may have."""
    if width := _WIDTHS.get(chunk.physical_type):
        return width
    size = int(chunk.total_uncompressed_size)
    mean = size // max(1, int(chunk.num_values))
    if "DELTA_BYTE_ARRAY" in chunk.encodings:  # a value may repeat the whole of the one before
        return size
    if any("DICTIONARY" in encoding for encoding in chunk.encodings):
        stream.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        return mean + min(size, _dictionary_size(stream) or size)
    return mean


def _dictionary_size(stream: BinaryIO) -> int:
    """Returns the size of the expanded dictionary whose page begins here; 0 if its header cannot be read.

    The header is a Thrift struct in the compact protocol: its first two fields are the page's type and size.
    """
    numbers = []
    for _ in range(2):
        if stream.read(1) != b"\x15":  # the next field, a 32-bit number
            return 0
        number = shift = 0
        more = True
        while more and shift < 35:
            byte = (stream.read(1) or b"\0")[0]
            number |= (byte & 0x7F) << shift
            shift, more = shift + 7, byte >= 0x80
        numbers.append(number >> 1)
    return numbers[1] if numbers[0] == 2 else 0
