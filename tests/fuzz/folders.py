"""Generated contents of a run folder and its cache: what is there, with a few files put, changed or taken away.

``pytest tests/unit/reconcile/test_hostile_folders.py`` draws 300. More, by hand:
``FINETUNE_FUZZ=10000 pytest tests/unit/reconcile/test_hostile_folders.py --hypothesis-seed=20261122``.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from hypothesis import strategies as st

from finetune_contract import CacheLayout, RunFolder, Stage
from finetune_operator.artifacts.port import PROGRESS_LIMIT, RECORD_LIMIT
from tests.fuzz.values import FLOATS, INTEGERS, TELLING, TEXTS, TIMES, WILD
from tests.unit.contract.samples import samples

type Path = tuple[str | int, ...]

#: How many examples a fuzz test draws.
EXAMPLES = int(os.environ.get("FINETUNE_FUZZ", "300"))

_NOTES: dict[str, Any] = {
    "retry": {"generation": 1, "from_stage": "Train", "first": dict.fromkeys(Stage, 2)},
    "taken-over": {"uid": "another", "job": "other-bot", "first": dict.fromkeys(Stage, 2)},
}
_FOREIGN = (
    ".DS_Store", "notes.txt", "eval-999/config.json", "train-1/result.json/x", "Train-1/result.json",
    "train-01/result.json", "train-1.0/result.json", "train-1/../../x", "train-1/", "/result.json", "retry-0.json",
    "retry-x.json", "retry-1.json.tmp", "taken-over-.json", "taken-over-a/b.json", "日本/result.json",
    "\u202e/result.json", "prep-1/request.json",
)  # fmt: skip


_TIME = re.compile(r"\d{4}-\d\d-\d\dT.*")
#: Stands in a document for what is too deep to be copied.
_NESTED = "<nested>"


class Change(Protocol):
    """One change that another client makes to the files."""

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
    """Below the run folder; ``cache:`` the manifest of that fingerprint; a number: of the files that are there;
    ``failure:`` the failure record beside the one of that number."""
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
class Forge:
    """Valid results of that stage and of all after it."""

    first: Stage
    number: int
    restart: int
    mutations: tuple[Mutation, ...] = ()

    def of(self, files: Mapping[str, bytes], run: RunFolder, cache: CacheLayout) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        for stage in list(Stage)[list(Stage).index(self.first) :]:
            document: Any = {**samples()[f"result-{stage.lower()}"][1], "attempt": self.number}
            for mutation in self.mutations:
                document = mutation.of(document)
            found[run.request(stage.short, self.number, self.restart)] = b"{}"
            found[run.result(stage.short, self.number, self.restart)] = json.dumps(document).encode()
        return found


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
                padded = sorted(files)[:32]
                return {uri: files[uri] + b" " * (RECORD_LIMIT - len(files[uri])) for uri in padded}


def _uri(file: str, files: Mapping[str, bytes], run: RunFolder, cache: CacheLayout) -> str:
    if file.isdecimal():
        there = sorted(files)
        return there[int(file) % len(there)] if there else run.progress
    kind, _, name = file.partition(":")
    if kind == "failure":
        made = sorted(uri for uri in files if uri.endswith("/request.json"))
        return (
            f"{made[int(name) % len(made)].rpartition('/')[0]}/failure.json"
            if made
            else run.failure("prep", 1)
        )
    return cache.convert_manifest(name) if kind == "cache" else f"{run.uri}/{file}"


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
    return _SPELLED[spelling](text, limit)


_SPELLED: dict[str, Callable[[str, int], bytes]] = {
    "plain": lambda text, _: text.encode(),
    "truncated": lambda text, _: text.encode()[: len(text) * 2 // 3],
    "empty": lambda *_: b"",
    "binary": lambda *_: bytes(range(256)) * 16,
    "byte order mark": lambda text, _: b"\xef\xbb\xbf" + text.encode(),
    "utf-16": lambda text, _: text.encode("utf-16"),
    "padded": lambda text, limit: text.encode().ljust(limit),
    "too large": lambda text, limit: text.encode().ljust(limit + 1),
    "twice": lambda text, _: f"{text[:-1]}, {text[1:]}".encode() if len(text) > 2 else text.encode() * 2,
    "deep": lambda *_: b'{"x":' * 100_000,
    "lines": lambda text, _: f"{text}\n{text}".encode(),
    "long number": lambda *_: b'{"attempt": ' + b"1" * 10_000 + b"}",
    "lone surrogate": lambda text, _: text.replace("Train", "\\ud800").encode(),
    "array": lambda text, _: f"[{text}]".encode(),
    "null": lambda *_: b"null",
}
#: How a document may be written but as it should be.
SPELLINGS = tuple(each for each in _SPELLED if each != "plain")


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
amounts = st.sampled_from(
    [
        "seconds",
        "seconds_before",
        "chips",
        "chip_hour_price",
        "queued",
        "provisioning",
        "checkpoint",
        "host",
        "code",
    ]
).flatmap(
    lambda name: st.builds(Mutation, st.just("tell"), numbers, st.sampled_from(TELLING[name]), st.just(name))
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
    st.builds(
        Put,
        numbers.map("failure:{}".format),
        st.just("failure-full") | st.just("own"),
        _a_few,
        st.just("plain"),
    ),
    st.builds(
        Put,
        numbers.map("failure:{}".format),
        st.just("failure-full"),
        st.tuples(amounts) | st.tuples(amounts, tellings),
    ),
    st.builds(
        Forge,
        st.sampled_from(Stage),
        st.sampled_from([1, 1, 1, 2, 999]),
        st.sampled_from([0, 0, 1, 7]),
        st.just(()) | st.tuples(tellings) | st.tuples(alike),
    ),
    st.builds(Put, notes, st.sampled_from(sorted(_NOTES)), _a_few, _spelling),
    st.builds(Put, any_file, any_base, _a_few, _spelling),
    st.builds(Take, there | others),
    st.builds(Fill, st.sampled_from(["names", "attempts", "restarts", "takeovers", "records"])),
)
#: A few more of them at once than one person makes by mistake.
contents = st.lists(changes, min_size=1, max_size=4).map(tuple)
