"""Reads ArrayRecord files, whose records are JSON objects or ``tf.train.Example``."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from finetune_trainer.readers.json_rows import require_object
from finetune_trainer.readers.json_text import parse
from finetune_trainer.readers.opening import complete, refuse_foreign
from finetune_trainer.readers.row_location import MAX_ROW, DataFile, RowLocation, shown

#: Number of records in memory at a time.
_RECORDS = 1024


def read_array_record(file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields records with their numbers, from 1: JSON objects, or ``tf.train.Example`` with one text per column.

    In a ``tf.train.Example``, whose form is MaxText's, a text that is a JSON list (of messages) is read as that list.
    Raises ``StageError`` 65, for a file that is cut off possibly after the last record.
    """
    from array_record.python.array_record_module import ArrayRecordReader

    with file.path.open("rb") as stream:
        refuse_foreign(file, stream.read(512), text=False)
    with complete(file, "ArrayRecord", RuntimeError, ValueError):
        reader = ArrayRecordReader(str(file.path), "readahead_buffer_size:0")
        count = reader.num_records()
        for start in range(0, count, _RECORDS):
            records = reader.read(list(range(start, min(start + _RECORDS, count))))
            for number, record in enumerate(records, start=start + 1):
                if len(record) > MAX_ROW:
                    raise file.too_large(number)
                yield number, _record(record, file.place(number))
        reader.close()  # raises if the file is faulty


def _record(record: bytes, place: RowLocation) -> Mapping[str, Any]:
    from google.protobuf.message import DecodeError

    try:
        if record[:1] in (b"{", b"["):
            return require_object(parse(record.decode()), place)
        from maxtext.input_pipeline.protos.example_pb2 import Example

        features = Example.FromString(record).features.feature
        return {name: _text(feature) for name, feature in features.items()}
    except (DecodeError, ValueError) as error:
        raise place.mismatch(
            "the record is neither a JSON object nor a tf.train.Example of strings",
            "Write records as JSON objects, or columns as UTF-8 text.",
            actual=shown(str(error), 200),
        ) from None


def _text(feature: Any) -> Any:
    values = [value.decode() for value in feature.bytes_list.value]
    if len(values) == 1 and values[0].startswith("[{"):
        with contextlib.suppress(ValueError):
            return parse(values[0])
    return values[0] if len(values) == 1 else values
