"""What one step costs a device, from the compiler's final program.

XLA's own cost analysis counts the body of a loop once, and MaxText's layers are a loop: here each body counts as
often as it runs.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jaxlib import _hlo, _jax  # type: ignore[attr-defined]  # what JAX's own analysis uses, untyped

_WHILE = re.compile(r" while\(.*?condition=%([\w.\-]+), body=%([\w.\-]+)")
_CALLS = re.compile(
    r"(?:calls|to_apply|called_computations|branch_computations)=\{?(%[\w.\-]+(?:, %[\w.\-]+)*)"
)
_LIMIT = re.compile(r"s32\[\]\S* constant\((\d+)\)")
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+)(?:e\d+m\d+\w*)?\[([\d,]*)\]")
_COLLECTIVE = re.compile(
    r" = (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one step on one device."""

    flops: float
    hbm_bytes: float
    """What the operations read and write, as if nothing stayed on the chip between them: more than what happens."""
    network_bytes: float
    """Results of collective operations."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            flops=self.flops + other.flops,
            hbm_bytes=self.hbm_bytes + other.hbm_bytes,
            network_bytes=self.network_bytes + other.network_bytes,
        )

    def times(self, count: int) -> "Cost":
        return Cost(
            flops=self.flops * count,
            hbm_bytes=self.hbm_bytes * count,
            network_bytes=self.network_bytes * count,
        )


def cost_of(program: str) -> Cost:
    """Of an optimized module's text (``Compiled.as_text()``)."""
    return _Program(program).cost()


class _Program:
    def __init__(self, text: str) -> None:
        self._parts: dict[str, list[str]] = {}
        self._entry = ""
        # without the tables that the numbers point into, each one would be warned of
        for name, is_entry, lines in _computations(re.sub(r" stack_frame_id=\d+", "", text)):
            self._parts[name] = lines
            if is_entry:
                self._entry = name

    @cached_property
    def _client(self) -> Any:
        return jax.local_devices(backend="cpu")[0].client

    def cost(self, name: str = "") -> Cost:
        """Of one run of a computation, loops inside it as often as they run."""
        name = name or self._entry
        total = self._once(name)
        for condition, body in self._loops(name):
            total += self.cost(body).times(self._trips(condition))
            total += self._once(body).times(-1)  # the analysis has counted it
        return total

    def _once(self, name: str) -> Cost:
        counted: Mapping[str, float] = _jax.hlo_module_cost_analysis(
            self._client, _hlo.hlo_module_from_text(self._module(name))
        )
        return Cost(
            flops=counted.get("flops", 0.0),
            hbm_bytes=counted.get("bytes accessed", 0.0),
            network_bytes=float(sum(map(_received, self._reached(name)))),
        )

    def _module(self, entry: str) -> str:
        """The program with another computation as its entry. Printed callees come before their callers."""
        lines = ["HloModule part"]
        for name in self._needed(entry):
            head, *rest = self._parts[name]
            head = head.removeprefix("ENTRY ")
            lines += [f"ENTRY {head}" if name == entry else head, *rest]
        return "\n".join(lines)

    def _needed(self, entry: str) -> list[str]:
        """``entry`` and all that it calls, in the order of the text."""
        found, todo = {entry}, [entry]
        while todo:
            for line in self._parts[todo.pop()]:
                for name in _callees(line):
                    if name not in found:
                        found.add(name)
                        todo.append(name)
        return [name for name in self._parts if name in found]

    def _reached(self, entry: str) -> Iterator[str]:
        """Every line that one run of ``entry`` comes by, bodies of loops once."""
        for name in self._needed(entry):
            yield from self._parts[name]

    def _loops(self, name: str) -> Iterator[tuple[str, str]]:
        for line in self._parts[name]:
            if match := _WHILE.search(line):
                yield match[1], match[2]

    def _trips(self, condition: str) -> int:
        """MaxText's loops compare a counter that begins at 0 with a constant."""
        limits = [int(match[1]) for line in self._reached(condition) if (match := _LIMIT.search(line))]
        return max(limits, default=1)


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
        yield from loop.groups()


def _received(line: str) -> int:
    """Bytes of a collective operation's result; 0 for any other line. What is started is also shown as its input."""
    match = _COLLECTIVE.search(line)
    return max((_bytes(*shape) for shape in _SHAPE.findall(match[1])), default=0) if match else 0


def _bytes(kind: str, dimensions: str) -> int:
    bits = 8 if kind == "pred" else int(re.sub(r"\D", "", kind))
    return math.prod(int(size) for size in dimensions.split(",") if size) * bits // 8
