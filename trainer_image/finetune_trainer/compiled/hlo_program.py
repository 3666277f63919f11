"""An optimized XLA program, parsed from its text: computations, what they call, and how often loops run."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_LOG = logging.getLogger(__name__)
_NAME = r"%([\w.\-]+)"
_WHILE = re.compile(rf" while\({_NAME}\), condition={_NAME}, body={_NAME}")
_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLS = re.compile(
    r"(?:calls|to_apply|called_computations|branch_computations)=\{?(%[\w.\-]+(?:, %[\w.\-]+)*)"
)
#: Name, operation, operands, tuple index and comparison direction of an integer or boolean scalar.
_SCALAR = re.compile(
    rf"^\s*(?:ROOT )?{_NAME} = (?:[su]32|pred)\[\]\S* ([\w\-]+)\((.*?)\)(?:, index=(\d+))?(?:, direction=(\w+))?"
)
_TUPLE = re.compile(rf"^\s*(?:ROOT )?{_NAME} = .* tuple\((.*?)\)")
_OPERAND = re.compile(_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop that a computation runs."""

    body: str
    trips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scalar:
    operation: str
    operands: str
    """Names of the operands as printed, or a constant's value."""
    index: str | None
    """Index of the element of a tuple that it reads; None for other operations."""
    direction: str | None
    """Direction of a comparison; None for other operations."""

    @property
    def names(self) -> list[str]:
        return _OPERAND.findall(self.operands)


class HloProgram:
    """A program from ``Compiled.as_text()``."""

    def __init__(self, text: str) -> None:
        self._parts: dict[str, _Computation] = {}
        self.entry = ""
        # each frame id would cause a warning, as the tables that they refer to are missing
        for name, is_entry, lines in _computations(re.sub(r" stack_frame_id=\d+", "", text)):
            self._parts[name] = _Computation(lines)
            if is_entry:
                self.entry = name

    def part(self, entry: str) -> str:
        """The program with another computation as its entry. Callees are printed before their callers."""
        lines = ["HloModule part"]
        for name in self._needed(entry):
            head, *rest = self._parts[name].lines
            head = head.removeprefix("ENTRY ")
            lines += [f"ENTRY {head}" if name == entry else head, *rest]
        return "\n".join(lines)

    def reached(self, entry: str) -> Iterator[str]:
        """Every line that one run of ``entry`` reaches, with bodies of loops once."""
        for name in self._needed(entry):
            yield from self._parts[name].lines

    def loops(self, name: str) -> Iterator[Loop]:
        """Loops that ``name`` itself runs, without those inside them."""
        part = self._parts[name]
        for line in part.lines:
            if match := _WHILE.search(line):
                yield Loop(body=match[3], trips=self._trips(part, line, *match.groups()))

    def _needed(self, entry: str) -> list[str]:
        """``entry`` and everything that it calls, in the order of the text."""
        found, todo = {entry}, [entry]
        while todo:
            for line in self._parts[todo.pop()].lines:
                for name in _callees(line):
                    if name not in found:
                        found.add(name)
                        todo.append(name)
        return [name for name in self._parts if name in found]

    def _trips(self, caller: "_Computation", line: str, given: str, condition: str, body: str) -> int:
        """Number of times that a loop runs.

        The CPU's compiler annotates it. For the TPU's it follows from counter, step and limit: matrix products that
        overlap with the network are unrolled loops, so that steps are not always 1.
        """
        if known := _KNOWN.search(line):
            return int(known[1])
        test = self._parts[condition].counted()
        if test is None:
            _LOG.warning("the loop %s has no counter as its condition: its body is counted once", body)
            return 1
        index, limit = test
        step = self._parts[body].step(index)
        return max(0, -(-(limit - caller.given(given, index)) // step))


class _Computation:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    @cached_property
    def _scalars(self) -> dict[str, _Scalar]:
        return {
            match[1]: _Scalar(operation=match[2], operands=match[3], index=match[4], direction=match[5])
            for line in self.lines
            if (match := _SCALAR.match(line))
        }

    @cached_property
    def _tuples(self) -> dict[str, list[str]]:
        return {match[1]: _OPERAND.findall(match[2]) for line in self.lines if (match := _TUPLE.match(line))}

    def counted(self) -> tuple[int, int] | None:
        """For a loop's condition ``counter < limit``: the counter's index in the loop's tuple, and the limit."""
        for scalar in self._scalars.values():
            if scalar.operation == "compare" and scalar.direction == "LT":
                counter, limit = (self._origin(name) for name in scalar.names)
                if counter is None or counter.index is None or limit is None:
                    continue
                if limit.operation == "constant":
                    return int(counter.index), int(limit.operands)
        return None

    def given(self, name: str, index: int) -> int:
        """The constant at an index of a tuple; 0, where counters begin, if it is not a constant."""
        return self._constant(self._tuples[name][index], default=0) if name in self._tuples else 0

    def step(self, index: int) -> int:
        """What a loop's body adds to the counter; 1 if that cannot be determined."""
        result = list(self._tuples.values())[-1:]
        added = self._origin(result[0][index]) if result else None
        if added is None or added.operation != "add":
            return 1
        return next((step for name in added.names if (step := self._constant(name, default=0))), 1)

    def _constant(self, name: str, *, default: int) -> int:
        origin = self._origin(name)
        return int(origin.operands) if origin is not None and origin.operation == "constant" else default

    def _origin(self, name: str) -> _Scalar | None:
        """The scalar that a value is a copy of."""
        scalar = self._scalars.get(name)
        while scalar is not None and scalar.operation == "copy":
            scalar = self._scalars.get(scalar.names[0])
        return scalar


def _computations(text: str) -> Iterator[tuple[str, bool, list[str]]]:
    lines: list[str] = []
    for line in text.splitlines():
        if not lines and not re.match(r"(ENTRY )?%[\w.\-]+ \(", line):
            continue
        lines.append(line)
        if line == "}" or line.startswith("}, execution_thread"):  # an attribute may span lines, too
            name = lines[0].removeprefix("ENTRY ").split(" ", 1)[0].removeprefix("%")
            yield name, lines[0].startswith("ENTRY "), lines
            lines = []


def _callees(line: str) -> Iterator[str]:
    for match in _CALLS.finditer(line):
        yield from (name.strip().removeprefix("%") for name in match[1].split(","))
    if loop := _WHILE.search(line):
        yield from (loop[2], loop[3])
