"""Generated contents of a run folder and its cache: what is there, with a few files put, changed or taken away.

``pytest tests/unit/reconcile/test_hostile_folders.py`` draws 300. More, by hand:
``FINETUNE_FUZZ=10000 pytest tests/unit/reconcile/test_hostile_folders.py --hypothesis-seed=20261122``.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from hypothesis import strategies as st

from finetune_contract import CacheLayout, RunFolder, Stage
from finetune_operator.artifacts.port import PROGRESS_LIMIT, RECORD_LIMIT
from tests.unit.contract.samples import samples

type Path = tuple[str | int, ...]

#: How many examples a fuzz test draws.
EXAMPLES = int(os.environ.get("FINETUNE_FUZZ", "300"))

#: What most fields do not take, and some should not have taken.
WILD: tuple[Any, ...] = (
    None, True, "", " ", "x" * 5000, "\0", "\u202e", "🙂" * 2000, "NaN", "-Infinity", "Infinity", "1e999", "../../x",
    "gs://elsewhere/secret/0/items", "file:///etc/passwd", "$(HF_TOKEN)", "{{ 7*7 }}",
    float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324, 0.5, -0.0,
    0, 1, 2, 999, 1000, -1, -(10**6), 10**6, 2**31, 2**53, 2**63, -(2**63), 10**30, 10**400,
    [], {}, [[]], [None], {"": ""}, ["x"] * 300, [[1, 2, 3]],
)  # fmt: skip
#: Of each type, what a field may take and what no honest writer writes.
INTEGERS = (0, 1, 2, 3, 99, 100, 999, 1000, -1, 10**6, 2**31, 2**53, 2**63, -(2**63), 10**30, 10**400)
FLOATS = (
    "NaN",
    "Infinity",
    "-Infinity",
    float("nan"),
    float("inf"),
    1e308,
    -1e308,
    -1.0,
    0.0,
    5e-324,
    1e-9,
    1e9,
    10**30,
)
TEXTS = (
    "", " ", "f1", "Train", "x" * 256, "x" * 1024, "x" * 5000, "\0", "\n", "\u202e", "🙂" * 300, "gs://elsewhere/secret/0/items",
    "file:///etc/passwd", "hf://acme/model@main", "../../x", "$(HF_TOKEN)", "$$", "{{ 7*7 }}", "-1", "1e999",
)  # fmt: skip
TIMES = (
    "0001-01-01T00:00:00+12:00", "1970-01-01T00:00:00Z", "2026-11-21T11:59:59Z", "2026-11-21T12:00:00Z",
    "2026-11-22T12:00:00Z", "2300-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00",
)  # fmt: skip
#: Fields that decide what a record is of, or how an attempt has ended.
TELLING: dict[str, tuple[Any, ...]] = {
    "version": (1, 2, 99, 0, "1", 1.5, 10**400),
    "speaks": ("1.0", "1.1", "9.9", "0.0", "9999.9999", ""),
    "stage": (*Stage, "Deploy"),
    "attempt": (1, 2, 999, -1),
    "restart": (0, 1, 9999, -1),
    "outcome": ("Succeeded", "Stopped", "Failed", "Paused"),
    "exit_code": (0, 1, 64, 69, 75, 76, 137, -9, 2**63),
    "code": (0, 1, 64, 66, 69, 70, 75, 76, 77, 78, 137, -9, 2**63),
    "reason": (
        "Suspended", "Replaced", "Evicted", "NoCapacity", "BudgetExhausted", "DeadlineExceeded", "Preempted", "Hung",
        "RecordIgnored", "ResultMalformed", "RunFolderUnreadable", "InputMissing", "GateNotMet", "Broken",
    ),
    "started": TIMES,
    "finished": TIMES,
    "updated": TIMES,
    "created": TIMES,
    "at": TIMES,
    "written": TIMES,
    "details": (None, {}, {"kind": "Deploy"}),
    "failure": (None, {}, {"code": 65, "reason": "Broken", "message": "it broke"}),
    "fingerprint": ("f1", "f2", "../../x", "", "x" * 200),
    "generation": (0, 1, 2, 10**9, 10**400),
    "from_stage": (*Stage, "Deploy"),
    "first": ({}, {"Train": 1}, {"Train": 999}, {"Export": 10**9}, {"Train": -5, "Preflight": 3}, {"Deploy": 1}),
    "uid": ("0b5e3a52-8d0e-4c39-a7d6-1f1f0c1d2e3f", "another", ""),
}  # fmt: skip
_NOTES: dict[str, Any] = {
    "retry": {"generation": 1, "from_stage": "Train", "first": dict.fromkeys(Stage, 2)},
    "taken-over": {"uid": "another", "job": "other-bot", "first": dict.fromkeys(Stage, 2)},
}
_FOREIGN = (
    ".DS_Store", "notes.txt", "eval-999/config.json", "train-1/result.json/x", "Train-1/result.json", "train-01/result.json",
    "train-1.0/result.json", "train-1/../../x", "train-1/", "/result.json", "retry-0.json", "retry-x.json", "retry-1.json.tmp",
    "taken-over-.json", "taken-over-a/b.json", "日本/result.json", "\u202e/result.json", "prep-1/request.json",
)  # fmt: skip


_TIME = re.compile(r"\d{4}-\d\d-\d\dT.*")
#: Stands in a document for what is too deep to be copied.
_NESTED = "<nested>"


class Change(Protocol):
    """One thing that somebody does to the files."""

    def of(self, files: Mapping[str, bytes], run: RunFolder, cache: CacheLayout) -> dict[str, bytes | None]:
        """By address: the new content, or None for a file that is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change inside of a document. ``where`` picks the place among all, the deepest included."""

    kind: str
    where: int
    value: Any = None
    name: str = ""

    def of(self, document: Any) -> Any:
        """A changed copy."""
        changed: Any = deepcopy(document)
        if self.kind == "tell":
            owners = [each for each in _containers(changed) if isinstance(each, dict) and self.name in each]
            target = owners[self.where % len(owners)] if owners else changed
            if isinstance(target, dict):
                target[self.name] = self.value
            return changed
        places = list(_places(changed))
        if not places:
            return self.value
        place = places[self.where % len(places)]
        container, key = _at(changed, place[:-1]), place[-1]
        match self.kind:
            case "drop":
                del container[key]
            case "retype":
                container[key] = self.value
            case "like":
                container[key] = _like(container[key], self.where)
            case "rename" if isinstance(container, dict):
                container[self.name] = container.pop(key)
            case "grow":
                container[key] = _grown(container[key])
            case "nest":
                container[key] = _NESTED
        return changed


@dataclass(frozen=True, slots=True)
class Put:
    """A file whose content begins as a valid record."""

    file: str
    """Below the run folder; ``cache:`` the manifest of that fingerprint; a number: of the files that are there."""
    base: str
    """``own``: what is there; the name of a sample or note; a number: what another file holds."""
    mutations: tuple[Mutation, ...] = ()
    spelling: str = "plain"

    def of(self, files: Mapping[str, bytes], run: RunFolder, cache: CacheLayout) -> dict[str, bytes | None]:
        uri = _uri(self.file, files, run, cache)
        document = self._document(uri, files)
        for mutation in self.mutations:
            document = mutation.of(document)
        limit = PROGRESS_LIMIT if uri == run.progress else RECORD_LIMIT
        return {uri: _spelled(document, self.spelling, limit)}

    def _document(self, uri: str, files: Mapping[str, bytes]) -> Any:
        if self.base in _NOTES:
            return _NOTES[self.base]
        if self.base in samples():
            return samples()[self.base][1]
        there = sorted(files)
        source = there[int(self.base) % len(there)] if self.base.isdecimal() and there else uri
        try:
            return json.loads(files.get(source, b"{}"))
        except (ValueError, RecursionError):
            return {}


@dataclass(frozen=True, slots=True)
class Take:
    """A file that is gone."""

    file: str

    def of(self, files: Mapping[str, bytes], run: RunFolder, cache: CacheLayout) -> dict[str, bytes | None]:
        return {_uri(self.file, files, run, cache): None}


@dataclass(frozen=True, slots=True)
class Fill:
    """Very many files."""

    what: str

    def of(self, files: Mapping[str, bytes], run: RunFolder, cache: CacheLayout) -> dict[str, bytes | None]:
        match self.what:
            case "names":
                return {f"{run.attempts}/junk/{number}": b"" for number in range(20_001)}
            case "attempts":
                return {
                    run.result(stage.short, number): b"{}" for stage in Stage for number in range(2, 999, 7)
                }
            case "restarts":
                return {run.failure("train", 1, restart): b"\xff" for restart in range(1, 9999, 21)}
            case "takeovers":
                note = json.dumps(_NOTES["taken-over"]).encode()
                return {run.taken_over(f"{number:08}"): note for number in range(150)}
            case _:
                return {uri: content + b" " * (RECORD_LIMIT - len(content)) for uri, content in files.items()}


SPELLINGS = (
    "truncated", "empty", "binary", "byte order mark", "utf-16", "padded", "too large", "twice", "deep", "lines",
    "long number", "lone surrogate", "array", "null",
)  # fmt: skip

numbers = st.integers(0, 9999)
attempt_files = st.builds(
    lambda stage, number, restart, name: (
        f"attempts/{stage}-{number}{f'.{restart}' if restart else ''}/{name}.json"
    ),
    st.sampled_from([stage.short for stage in Stage]),
    st.sampled_from([1, 1, 1, 2, 2, 3, 7, 998, 999, 1000, 0]),
    st.sampled_from([0, 0, 0, 1, 2, 9999, 10000]),
    st.sampled_from(["result", "result", "failure", "request"]),
)
notes = st.builds(
    "attempts/{}".format, st.builds("retry-{}.json".format, st.sampled_from([1, 2, 3, 9999999999]))
) | (st.sampled_from([f"attempts/taken-over-{uid}.json" for uid in ("another", "0b5e3a52", "x")]))
others = st.sampled_from(
    [
        "train/progress.json",
        "train/progress.json",
        "train/hosts/0.json",
        "train/hosts/1.json",
        "cache:f1",
        "cache:f2",
    ]
)
foreign = st.sampled_from([f"attempts/{name}" for name in _FOREIGN])
there = numbers.map(str)
any_file = there | attempt_files | others | notes | foreign
tellings = st.sampled_from(sorted(TELLING)).flatmap(
    lambda name: st.builds(Mutation, st.just("tell"), numbers, st.sampled_from(TELLING[name]), st.just(name))
)
alike = st.builds(Mutation, st.just("like"), numbers)
mutations = st.one_of(
    tellings,
    tellings,
    alike,
    alike,
    alike,
    alike,
    st.builds(Mutation, st.sampled_from(["drop", "grow", "nest"]), numbers),
    st.builds(Mutation, st.just("retype"), numbers, st.sampled_from(WILD + TIMES)),
    st.builds(Mutation, st.just("rename"), numbers, st.none(), st.sampled_from(["", "x", *TELLING])),
)
_a_few = st.lists(mutations, min_size=0, max_size=4).map(tuple)
_spelling = st.just("plain") | st.just("plain") | st.just("plain") | st.sampled_from(SPELLINGS)
results = st.sampled_from([name for name in samples() if name.startswith("result-")])
any_base = st.just("own") | st.sampled_from(sorted(samples())) | there

changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(Put, there, st.just("own"), _a_few.filter(len), _spelling),
    st.builds(Put, there, st.just("own"), _a_few.filter(len), _spelling),
    st.builds(Put, there, st.just("own"), st.just(()), st.sampled_from(SPELLINGS)),
    st.builds(
        Put,
        others,
        st.just("own") | st.just("progress-full") | st.just("convert-manifest"),
        _a_few,
        _spelling,
    ),
    st.builds(Put, attempt_files, results | st.just("failure-full") | there, _a_few, _spelling),
    st.builds(Put, notes, st.sampled_from(sorted(_NOTES)), _a_few, _spelling),
    st.builds(Put, any_file, any_base, _a_few, _spelling),
    st.builds(Take, there | others),
    st.builds(Fill, st.sampled_from(["names", "attempts", "restarts", "takeovers", "records"])),
)
#: A few more of them at once than one person makes by mistake.
contents = st.lists(changes, min_size=1, max_size=4).map(tuple)


def _uri(file: str, files: Mapping[str, bytes], run: RunFolder, cache: CacheLayout) -> str:
    if file.isdecimal():
        there = sorted(files)
        return there[int(file) % len(there)] if there else run.progress
    kind, _, fingerprint = file.partition(":")
    return cache.convert_manifest(fingerprint) if kind == "cache" else f"{run.uri}/{file}"


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        yield from chain.from_iterable(map(_containers, value.values() if isinstance(value, dict) else value))


def _places(value: Any, before: Path = ()) -> Iterator[Path]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*before, key)
        yield from _places(each, (*before, key))


def _at(value: Any, place: Path) -> Any:
    for part in place:
        value = value[part]
    return value


def _like(value: Any, which: int) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            pool: tuple[Any, ...] = INTEGERS
        case float():
            pool = FLOATS
        case str() if _TIME.fullmatch(value):
            pool = TIMES
        case str():
            pool = TEXTS
        case _:
            return _grown(value) if which % 2 else type(value)() if value else value
    return pool[which // 7 % len(pool)]


def _grown(value: Any) -> Any:
    match value:
        case list() | dict() if len(json.dumps(value)) > 10_000:
            return value
        case str():
            return (value or "x") * (2000 // max(1, len(value)) + 1)
        case list():
            return (value or [0]) * 300
        case dict():
            return {**value, **{f"k{number}": next(iter(value.values()), "v") for number in range(300)}}
        case bool() | None:
            return value
    return value * 10**9 if isinstance(value, int | float) else value


def _spelled(document: Any, spelling: str, limit: int) -> bytes:
    text = json.dumps(document).replace(f'"{_NESTED}"', "[" * 2000 + "]" * 2000)
    content = text.encode()
    match spelling:
        case "truncated":
            return content[: len(content) * 2 // 3]
        case "empty":
            return b""
        case "binary":
            return bytes(range(256)) * 16
        case "byte order mark":
            return b"\xef\xbb\xbf" + content
        case "utf-16":
            return text.encode("utf-16")
        case "padded":
            return content + b" " * max(0, limit - len(content))
        case "too large":
            return content + b" " * max(1, limit + 1 - len(content))
        case "twice":
            return (
                f"{text[:-1]}, {text[1:]}".encode() if text.startswith("{") and len(text) > 2 else content * 2
            )
        case "deep":
            return b'{"x":' * 100_000
        case "lines":
            return content + b"\n" + content
        case "long number":
            return b'{"attempt": ' + b"1" * 10_000 + b"}"
        case "lone surrogate":
            return text.replace("Train", "\\ud800").encode()
        case "array":
            return b"[" + content + b"]"
        case "null":
            return b"null"
    return content
