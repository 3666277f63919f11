"""The columns of one dataset's rows: which of them provides what, and what happens to the others. Pure.

The first row decides the shape (:mod:`.shapes`). Each column is read, counted as unread (:mod:`.unread`), or refused
because its name has a meaning (:mod:`finetune_trainer.readers.known_names`) for which the format has no place.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.data.advice import ALIKE, format_advice, kind, leave_out, quoted
from finetune_trainer.data.shapes import COLUMNS, FORMATS, Format, Shape
from finetune_trainer.data.unread import ABOUT, UnreadValues, characters, refused
from finetune_trainer.errors import StageError
from finetune_trainer.readers.known_names import KnownName, as_label, by_names, is_empty, known_name
from finetune_trainer.readers.row_location import Row

#: Meanings of columns that often repeat what others say. Any other column is not passed over, whatever its text.
_REPEATING = frozenset({"prompt", "completion", "messages", "text", "chosen", "system", "input", "history"})
#: Minimum number of characters of a text that counts as read because it is a part of one that is.
LONG = 20
#: Maximum number of characters that are searched to find out whether a row's values repeat what was read.
_SEARCHED = 10**8
#: Columns of the API whose text a prompt has.
_ASKING = frozenset({"prompt", "input", "history", "system"})
#: Maximum number of columns that an error names.
_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnUse:
    """What happens to the columns of a row. Derived once for each set of columns, as many rows have the same."""

    optional: Mapping[str, Sequence[str]]
    """Columns that provide an optional column of the format, by the API's name; at most one may have a value."""
    known: Mapping[str, KnownName]
    """Columns with a known meaning that nothing reads."""
    unread: Sequence[str]


class _Texts:
    """Texts that were read from a row. What the search in them needs is made once, for all columns.

    ``most``: maximum number of characters that are searched for one column.
    """

    def __init__(self, texts: Iterable[str], most: int) -> None:
        self.most = most
        self.each = dict.fromkeys(stripped for text in texts if (stripped := text.strip()))

    @cached_property
    def whole(self) -> str:
        return "\0".join(self.each)

    @cached_property
    def parts(self) -> Sequence[str]:
        """The texts, divided at blank lines, as a rendered prompt divides the instruction from its input."""
        return [part for text in self.each for part in text.split("\n\n")]


class ColumnReader:
    """Reads the columns of one dataset. ``shapes`` are those to choose from, by the ``first`` row.

    What nothing reads is counted in ``unread``. Raises ``StageError`` 64 for a mapping that names what does not exist,
    65 for a row of unknown shape.
    """

    def __init__(self, source: DatasetSpec, first: Row, shapes: Sequence[Shape]) -> None:
        self._source, self._ignored = source, frozenset(source.ignore)
        self.unread = UnreadValues()
        self.shape = _shape_of(source, first, shapes)
        self._names = FORMATS[self.shape.format]
        self._columns = {
            name: source.columns.get(name, self.shape.column(name)) for name in self._names.needs
        }
        self._use_of = by_names(self._derived)

    def column(self, name: str) -> str:
        """Returns the dataset's name of a column that every row needs."""
        return self._columns[name]

    def value(self, row: Row, name: str) -> Any:
        """Returns the value of a column that every row needs. ``name`` is the column's name in the API."""
        column = self._columns[name]
        if column not in row.value:
            raise row.place.mismatch(
                f'there is no column "{column}"',
                format_advice(row.value, [self._names.needs]),
                actual=f"columns {_listed(row.value)}",
                expected=f"rows of the shape {self.shape}; rows of another shape belong in a source of their own",
            )
        return row.value[column]

    def text(self, row: Row, name: str) -> str:
        """Returns the value of a column that every row needs, which must be text."""
        value = self.value(row, name)
        if not isinstance(value, str):
            raise row.place.mismatch(
                f'"{self._columns[name]}" must be text', "Write one string.", actual=kind(value)
            )
        return value

    def optional(self, row: Row, name: str) -> tuple[str, Any]:
        """Returns the column that provides an optional column of the API, and its value; None if it is empty.

        Raises ``StageError`` 65 if several columns do.
        """
        columns = self._use(row).optional.get(name)
        if not columns:
            return "", None
        said = [column for column in columns if not is_empty(row.value[column])]
        if len(said) > 1:
            raise row.place.mismatch(
                f"{' and '.join(map(quoted, said))} both provide {name}",
                f"Use one and ignore the other: columns: {{{name}: {quoted(said[0])}, ignore: [{quoted(said[1])}]}}.",
            )
        return (said[0], row.value[said[0]]) if said else (columns[0], None)

    def optional_text(self, row: Row, name: str) -> str:
        """Returns an optional text; '' if there is none."""
        column, value = self.optional(row, name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise row.place.mismatch(
                f'"{column}" must be text, as it provides {name}',
                f"Write one string, or {self.left_out(column)}.",
                actual=kind(value),
            )
        return value

    def left_out(self, column: str, *, what: str = "") -> str:
        """Returns the advice to leave out a column, which is then not mapped."""
        mapped = column in self._source.columns.values()
        return leave_out(column, what=what) + (", in place of its mapping" if mapped else "")

    def account(self, row: Row, asked: Sequence[str], answered: Sequence[str]) -> None:
        """Counts the columns of a row that nothing reads. The texts that were read from it are in its prompt, which is
        ``asked``, or ``answered``.

        Raises ``StageError`` 65 for those with a known meaning, unless they repeat what was read.
        """
        use = self._use(row)
        if use.known:
            most = _SEARCHED // len(use.known)
            read = _Texts(asked, most), _Texts([*asked, *answered], most)
            names = [name for name, known in use.known.items() if self._says_more(name, known, row, *read)]
            if names:
                raise refused(
                    names, "column", f"a row of the shape {self.shape}", row.value, row.place,
                    mapped=self._mapped(row, names[0], use.known[names[0]].way, answered),
                )  # fmt: skip
        for name in use.unread:
            self.unread.add(name, row.value[name], ignored=name in self._ignored)

    def named(self, name: str) -> str:
        """Returns the column that the job or the shape names for one of the API; '' if neither does."""
        return self._source.columns.get(name) or self.shape.columns.get(name, "")

    def likely_prompts(self, row: Row) -> list[str]:
        """Returns the columns that may be the prompt of a row that has none: those with the name of one, even if they
        are empty, and those with text that nothing reads. The likely ones are first.
        """
        use = self._use(row)
        named = [name for name, known in use.known.items() if known.way in {"prompt", "messages"}]
        named += [name for wanted in ("prompt", "input") for name in use.optional.get(wanted, ())]
        free = {name for name in use.unread if name not in self._ignored and name.lower() not in ABOUT}
        values = {name: row.value[name] for name in (*named, *sorted(free))}
        said = {name: 0 if is_empty(value) else characters(value) for name, value in values.items()}
        return sorted(
            (name for name in said if said[name] or name in named),
            key=lambda name: (not said[name], name in free, isinstance(row.value[name], str), -said[name]),
        )

    def _mapped(self, row: Row, name: str, way: str, answered: Sequence[str]) -> str:
        """Returns the advice to map a column that nothing reads; '' if no column of the format is meant."""
        value = row.value[name]
        if way == "text" and "input" in self._names.may and isinstance(value, str):
            way = "input"  # a passage that the question is about
        if way == "label" and self.shape.format is Format.TEXT and isinstance(value, str):
            pair = f"prompt: {quoted(self._columns['text'])}, completion: {quoted(name)}"
            return f"Train it as the answer: columns: {{{pair}}}"
        if not _may_be(way, value, answered):
            return ""
        way = next((ours for ours in self._columns if ALIKE.get(ours) == way), way)
        if way in self._names.may:
            read = self._use(row).optional.get(way, ())
            now = next((column for column in read if not is_empty(row.value[column])), None)
            if now is None:
                return f"Map it: columns: {{{way}: {quoted(name)}}}"
            columns = {**self._source.columns, way: name}
        else:
            now = self._columns.get(way)
            if now is None or type(value) is not type(row.value[now]):
                return ""
            columns = {**self._columns, way: name}
        mapped = ", ".join(f"{ours}: {quoted(column)}" for ours, column in columns.items())
        known = known_name("column", now)
        if way == "prompt" and known and known.meaning in self._names.may:  # row 1 has an input alone
            return f"Use both: columns: {{{mapped}, {known.meaning}: {quoted(now)}}}"
        return f"Use it in place of {quoted(now)}: columns: {{{mapped}, ignore: [{quoted(now)}]}}"

    def _says_more(self, name: str, known: KnownName, row: Row, asked: _Texts, texts: _Texts) -> bool:
        value = row.value[name]
        if is_empty(value) or (known.meaning == "flag" and as_label(value)):
            return False
        rendered = isinstance(value, str) and known.way in {"text", "prompt"} and texts.parts
        if rendered and _contains(value, texts.parts, texts.most):
            self.unread.add(name, value)  # the row as a whole, and maybe more
            return False
        return known.way not in _REPEATING or not _repeats(value, asked if known.way in _ASKING else texts)

    def _use(self, row: Row) -> _ColumnUse:
        return self._use_of(tuple(row.value))

    def _derived(self, names: tuple[str, ...]) -> _ColumnUse:
        mapped = {*self._columns.values(), *self.shape.columns.values()}
        mapped |= {column for name, column in self._source.columns.items() if name in self._names.may}
        free = [name for name in names if name not in mapped and name not in self._ignored]
        known = {name: meaning for name in free if (meaning := known_name("column", name))}
        optional: dict[str, Sequence[str]] = {}
        for wanted in self._names.may:
            given = self.named(wanted)
            meant = [name for name, meaning in known.items() if meaning.meaning == wanted]
            columns = [given] if given else sorted(meant, key=lambda name: known[name].order)
            if columns and columns[0] in names:
                optional[wanted] = columns
        read = mapped | {column for columns in optional.values() for column in columns}
        return _ColumnUse(
            optional=optional,
            known={name: meaning for name, meaning in known.items() if name not in read},
            unread=[name for name in names if name not in read and name not in known],
        )


def _shape_of(source: DatasetSpec, first: Row, shapes: Sequence[Shape]) -> Shape:
    """Returns the shape of the rows: the first one whose columns all occur in row 1 and say something there."""
    wrong = [name for name in source.columns if name not in COLUMNS]
    if wrong:
        raise _bad_columns(
            source, "columns maps standard names to the dataset's columns", wrong[0], COLUMNS,
            "Swap them: the standard name first, then the dataset's column.",
        )  # fmt: skip
    formats = {shape.format for shape in shapes}
    if source.format != "Auto":
        formats = {Format(source.format)}
    only = next(iter(formats)) if len(formats) == 1 else None
    if only and (idle := [name for name in source.columns if name not in FORMATS[only].mapped]):
        raise _bad_columns(
            source, f"format {only} has no such column", idle[0], FORMATS[only].mapped,
            "Leave it out, or name another format.",
        )  # fmt: skip
    # A column that is left out has no part in the choice, whether the file's reader reads it or not.
    first = replace(
        first, value={name: value for name, value in first.value.items() if name not in source.ignore}
    )
    _require_columns(source, first)
    fitting = [
        shape.mapped(source.columns)
        for shape in shapes
        if shape.format in formats and shape.allows(source.columns)
    ]
    whole = [shape for shape in fitting if shape.fits(first.value, source.role_map)]
    for shape in (*whole, *fitting):
        if shape.occurs(first.value, source.role_map):
            return shape
    if only:
        return Shape(format=only)
    needs = [FORMATS[name].needs for name in FORMATS if name in formats]
    raise first.place.mismatch(
        "the format cannot be determined from the columns",
        format_advice(first.value, needs),
        actual=f"columns {_listed(first.value)}",
        expected="; ".join(" and ".join(names) for names in needs),
    )


def _require_columns(source: DatasetSpec, first: Row) -> None:
    """Raises ``StageError`` 64 if the dataset's mapping names a column that its first row does not have."""
    for ours, theirs in source.columns.items():
        if theirs not in first.value:
            near = difflib.get_close_matches(theirs, list(first.value), n=1)
            raise StageError(
                ExitCode.BAD_REQUEST, "UnknownColumn",
                f'columns.{ours} names "{theirs[:100]}", which row {first.place.row} does not have',
                where=source.path,
                actual=f"columns {_listed(first.value)}",
                fix=f"Write columns: {{{ours}: {quoted(near[0])}}}." if near else "Name a column of the row.",
            )  # fmt: skip


def _may_be(way: str, value: Any, answered: Sequence[str]) -> bool:
    """Whether a value is of the kind that a column of the API has. The texts of the row's answer are ``answered``."""
    match way:
        case "label":
            return as_label(value) is not None  # otherwise a class of the row, not a judgment
        case "reasoning":  # and not a mode, or another thought than the answer's
            text = value.strip() if isinstance(value, str) else ""
            return len(text) >= LONG and not any("</think>" in each and text not in each for each in answered)
        case "input":
            return all(isinstance(each, str) for each in (value if isinstance(value, list) else [value]))
        case "tools":
            return not isinstance(value, Mapping)
    return True


def is_text(value: Any) -> bool:
    """Whether a value that is not empty is a text, or a list of messages."""
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    )


def _contains(text: str, parts: Collection[str], most: int) -> bool:
    """Whether a text contains all parts. False if more than ``most`` characters have to be searched to find out."""
    return len(text) * len(parts) <= most and all(part in text for part in parts)


def _repeats(value: Any, texts: _Texts) -> bool:
    """Whether all texts of a value are among ``texts`` or, if they are long, a part of one."""
    parts = _texts_in(value)
    if not parts:
        return False
    rest = {part for part in parts if part not in texts.each}
    return not rest or (min(map(len, rest)) >= LONG and _contains(texts.whole, rest, texts.most))


def _texts_in(value: Any) -> list[str]:
    """Returns the texts of a value, of messages their contents alone; none if it has anything else."""
    parts, values = [], [value]
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            value = [value[name] for name in ("content", "value") if name in value] or list(value.values())
        if isinstance(value, str):
            parts.append(value.strip())
        elif isinstance(value, list) and value:
            values.extend(value)
        else:
            return []
    return parts


def _listed(columns: Mapping[str, Any]) -> str:
    return ", ".join(map(quoted, list(columns)[:_SHOWN])) or "none"


def _bad_columns(source: DatasetSpec, what: str, actual: str, known: Sequence[str], fix: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "UnknownColumn", what, where=f"{source.path}.columns", actual=actual,
        expected=f"one of {', '.join(known)}", fix=fix,
    )  # fmt: skip
