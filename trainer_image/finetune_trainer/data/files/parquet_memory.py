"""Bounds the memory that a part of a Parquet file takes once it is decoded.

A dictionary or a run holds a value once, however many rows have it, so that a file of a few kilobytes may decode to
terabytes. The sizes are in the metadata and in the headers of the dictionaries.
"""

from typing import Any, BinaryIO

#: Rows, and bytes in the worst case, that are decoded at a time.
BATCH_ROWS, BATCH_BYTES = 1024, 256 * 2**20
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
#: Bytes of a dictionary page's header that precede the sizes and contain them.
_HEADER = 16


def expanded_size(metadata: Any) -> int:
    """Returns the bytes of a file's decoded values, without values that dictionaries repeat."""
    return sum(
        max(chunk.total_uncompressed_size, chunk.num_values * _WIDTHS.get(chunk.physical_type, 0))
        for group in _groups(metadata)
        for chunk in _chunks(group)
    )


def row_bytes(group: Any, stream: BinaryIO) -> int:
    """Returns the bytes that a row of average length takes if all its values are the largest of their columns."""
    return sum(
        chunk.num_values * (8 + _largest(chunk, stream)) // max(1, group.num_rows) for chunk in _chunks(group)
    )


def batch_rows(row: int) -> int:
    """Returns the number of rows to decode at a time. ``row`` is the result of ``row_bytes``."""
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1, row))))


def _groups(metadata: Any) -> list[Any]:
    return [metadata.row_group(index) for index in range(metadata.num_row_groups)]


def _chunks(group: Any) -> list[Any]:
    return [group.column(index) for index in range(group.num_columns)]


def _largest(chunk: Any, stream: BinaryIO) -> int:
    """Returns the bytes of the largest value that a column may have."""
    if width := _WIDTHS.get(chunk.physical_type):
        return width
    size = int(chunk.total_uncompressed_size)
    mean = size // max(1, int(chunk.num_values))
    if "DELTA_BYTE_ARRAY" in chunk.encodings:  # a value may repeat the whole of the one before
        return size
    if any("DICTIONARY" in encoding for encoding in chunk.encodings):
        return mean + min(size, _dictionary_size(chunk, stream) or size)
    return mean


def _dictionary_size(chunk: Any, stream: BinaryIO) -> int:
    """Returns the size of a column's expanded dictionary; 0 if its header cannot be read.

    The header is a Thrift struct in the compact protocol: its first two fields are the page's type and size.
    """
    stream.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
    header = stream.read(_HEADER)
    numbers, at = [], 0
    for _ in range(2):
        if header[at : at + 1] != b"\x15":  # the next field, a 32-bit number
            return 0
        number, shift, more = 0, 0, True
        while more and at + 1 < len(header):
            at += 1
            number |= (header[at] & 0x7F) << shift
            shift, more = shift + 7, header[at] >= 0x80
        numbers.append(number >> 1)
        at += 1
    return numbers[1] if numbers[0] == 2 else 0
