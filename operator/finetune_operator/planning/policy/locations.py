"""Locations that a job may read and write. Works on text only: a glob is checked against everything that it can match.

Namespaces own storage: without entries in the profile, a job reads ``<artifacts>/<namespace>/`` and, apart from its own
run folder, writes ``<artifacts>/<namespace>/exports/``. A cache or a Pathways scratch folder that the profile names
belongs to no job.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, Self

from finetune_operator.api.profile import Storage
from finetune_operator.ledger.layout import overlaps

type Rule = Literal["read", "write"]

EXPORTS = "exports"
#: Folders of a namespace that are not run folders.
_NO_RUNS = (EXPORTS, "cache", "pathways", "programs")
_WILDCARDS = frozenset("*?[")
#: ASCII only: a range of other characters may be very long.
_PLAIN_SET = re.compile(r"\[([\x22-\x5a\x5f-\x7e]+)\]")
#: Number of path segments in ``gs://bucket``, and in ``file://`` with its first slash.
_ROOT = 3
#: Represents what a wildcard of a job matches; no entry of a profile contains it.
_UNKNOWN = "\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A location that a job names."""

    path: str
    """Field that names it."""
    uri: str
    """``gs://…`` or ``file://…``; on the hub ``hf://models/…``, ``hf://datasets/…``, ``hf://benchmarks/…``, and for
    writing ``hf://<repository>``."""
    folder: bool = True
    """Whether everything below it is included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFolders:
    """The profile's own folders, as one namespace sees them, without trailing slashes."""

    artifacts: str
    namespace: str
    shared: Mapping[str, str]
    """Folders outside the artifacts, by field name: the cache and Pathways' scratch folder, if the profile names them.
    Each namespace has its part of them, which no job can name."""

    @classmethod
    def of(cls, storage: Storage, namespace: str) -> Self:
        """Returns the folders of a profile's ``spec.storage``."""
        shared = {"cache": storage.cache, "pathwaysScratch": storage.pathways_scratch}
        return cls(
            artifacts=storage.artifacts.rstrip("/"),
            namespace=namespace,
            shared={name: folder.rstrip("/") for name, folder in shared.items() if folder is not None},
        )

    @property
    def own(self) -> str:
        """Folder of all run folders of the namespace."""
        return f"{self.artifacts}/{self.namespace}"

    @property
    def exports(self) -> str:
        """Folder to which jobs of the namespace may export."""
        return f"{self.own}/{EXPORTS}"


def storage_faults(section: Storage) -> Iterator[str]:
    """Yields folders of a profile that cannot be kept apart: write access to one would include another."""
    storage = ProfileFolders.of(section, "")
    folders = {"artifacts": storage.artifacts, **storage.shared}
    for (outer, around), (inner, within) in permutations(folders.items(), 2):
        if within.startswith(f"{around}/") or (within == around and outer < inner):
            lies = "is" if within == around else "is in"
            yield (
                f"spec.storage.{inner}: {within} {lies} spec.storage.{outer}, {around}, where it may belong to a "
                "namespace: use folders of which none contains another."
            )
    for name, folder in storage.shared.items():
        if _is_file(folder) and not _is_file(storage.artifacts):
            yield (
                f"spec.storage.{name}: {folder} is a file system and spec.storage.artifacts, {storage.artifacts}, is "
                "none: use a folder in gs://."
            )


def ledger_faults(section: Storage, ledger: str) -> Iterator[str]:
    """Yields folders of a profile, where pods of tenants write, that overlap the operator's ledger."""
    storage = ProfileFolders.of(section, "")
    for name, folder in {"artifacts": storage.artifacts, **storage.shared}.items():
        if overlaps(ledger, folder):
            yield (
                f"spec.storage.{name}: {folder} overlaps the operator's ledger, {ledger}, which no tenant may write: "
                "use another folder, or set the operator's ledger to a bucket of its own."
            )


def location_problem(
    place: Location, storage: ProfileFolders, rule: Rule, listed: Sequence[str] | None, *, strict: bool
) -> str | None:
    """Returns why ``place`` may not be read or written; None if it may.

    Args:
        place: the location that the job names.
        storage: the profile's folders.
        rule: the requested access.
        listed: the profile's ``constraints.uris.<rule>``; None if not set.
        strict: whether only listed locations are allowed.
    """
    uri = place.uri.rstrip("/")
    covering = [pattern for pattern in listed or () if covers(pattern, uri)]
    if fault := _of_a_pod(place.path, uri, storage):
        return fault
    own = storage.exports if rule == "write" else storage.own
    if not _open(_guarded(place, uri, storage, rule), covering):
        # An entry for it would open it to every namespace of the profile, so the message suggests none.
        instead = "use data of your own" if rule == "read" else "use a folder there"
        return (
            f"{place.path}: {uri} is in the profile's own storage, where jobs of namespace {storage.namespace} "
            f"{rule} below {own}/ alone: {instead}"
        )
    if covering or _inside(uri, own) or (listed is None and not strict):
        return None
    entries = ", ".join(listed) if listed else "empty" if listed is not None else "not set"
    return (
        f"constraints.uris.{rule} is {entries}, which does not cover {place.path} {uri}"
        f"{_to_allow(_entry(place, uri), rule)}"
    )


def _of_a_pod(path: str, uri: str, storage: ProfileFolders) -> str | None:
    """Returns why a location in a file system is refused, if the profile uses other storage; else None."""
    if not _is_file(uri) or _is_file(storage.artifacts):
        return None
    return (
        f"{path}: {uri} is the file system of a pod, and the profile keeps things in {storage.artifacts}: "
        "use a gs:// URI"
    )


def _open(guarded: Iterable[str | None], covering: Sequence[str]) -> bool:
    """Returns whether the entries name each of the ``guarded`` folders."""
    return all(folder is not None and any(_names(each, folder) for each in covering) for folder in guarded)


def _to_allow(entry: str | None, rule: Rule) -> str:
    """Returns the change to the profile that would allow the location; empty if no entry would."""
    return f': to allow it, add "{entry}" to spec.constraints.uris.{rule} of the profile' if entry else ""


def run_folder_problem(path: str, folder: str, storage: ProfileFolders, listed: Sequence[str]) -> str | None:
    """Returns why a job may not resume in the run folder ``folder``; None if it may.

    It may if the folder belongs to its own namespace, or if ``constraints.uris.write`` names it.
    """
    uri = folder.rstrip("/")
    if fault := _of_a_pod(path, uri, storage):
        return fault
    parent, _, name = uri.rpartition("/")
    shared = any(_touches(uri, each, folder=True) for each in storage.shared.values())
    own = parent == storage.own and name not in _NO_RUNS

    def opens(entry: str) -> bool:
        return covers(entry, uri) and _opens_run(entry, uri, storage)

    if not shared and (own or any(map(opens, listed))):
        return None
    if shared or _touches(uri, storage.artifacts, folder=True):
        advice = ": use a run folder of your own namespace"
    else:
        advice = _to_allow(uri, "write")
    return (
        f"{path} {uri} is neither a run folder in {storage.own}/ nor covered by constraints.uris.write "
        f"({', '.join(listed) or 'empty'}) with its namespace's folder named{advice}"
    )


def _opens_run(pattern: str, uri: str, storage: ProfileFolders) -> bool:
    """Returns whether an entry opens a run folder: within the profile's own storage, it must name the namespace."""
    if not _touches(uri, storage.artifacts, folder=True):
        return True
    depth = len(storage.artifacts.split("/")) + 1
    return len(uri.split("/")) == depth + 1 and _names(pattern, "/".join(uri.split("/")[:depth]))


def _guarded(place: Location, uri: str, storage: ProfileFolders, rule: Rule) -> Iterator[str | None]:
    """Yields the profile's folders that ``place`` may be in and that its namespace may not use this way.

    An entry opens such a folder only by naming it; None stands for a folder that no entry can open.
    """
    for folder in storage.shared.values():
        if _touches(uri, folder, folder=place.folder):
            yield folder
    own = storage.exports if rule == "write" else storage.own
    if _touches(uri, storage.artifacts, folder=place.folder) and not _inside(uri, own):
        depth = len(storage.artifacts.split("/")) + (2 if rule == "write" else 1)
        head = uri.split("/")[:depth]
        yield "/".join(head) if len(head) == depth and not _is_glob("/".join(head)) else None


def covers(pattern: str, uri: str) -> bool:
    """Returns whether an entry of a profile covers everything that ``uri`` can match.

    In the entry, ``*`` matches any characters, including slashes; in ``uri``, no wildcard matches a slash.
    """
    return matches(pattern, _blurred(uri))


def matches(pattern: str, text: str) -> bool:
    """Returns whether ``text`` matches ``pattern``, in which ``*`` matches any characters.

    Works in one pass without a cache: tenants write patterns, too, and fnmatch caches each compiled pattern.
    """
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    *between, last = others
    at, end = len(first), len(text) - len(last)
    if at > end or not (text.startswith(first) and text.endswith(last)):
        return False
    for part in between:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _blurred(uri: str) -> str:
    """Returns ``uri`` with one unknown per name that has wildcards; only the certain text around it stays."""
    return uri if uri.startswith("hf://") else "/".join(map(_blurred_name, uri.split("/")))


def _blurred_name(name: str) -> str:
    at = [index for index, letter in enumerate(name) if letter in _WILDCARDS]
    if not at:
        return name
    # The end of a character set is not always clear, so nothing after one is certain.
    return f"{name[: at[0]]}{_UNKNOWN}{'' if '[' in name else name[at[-1] + 1 :]}"


def _entry(place: Location, uri: str) -> str | None:
    """Returns a possible entry that covers ``uri`` (for a file, its folder); None if that is a whole bucket."""
    if uri.startswith("hf://"):
        return uri
    names = uri.split("/")
    if place.folder:
        return uri if len(names) > _ROOT else None
    fixed = next((index for index, name in enumerate(names[:-1]) if _is_glob(name)), len(names) - 1)
    if fixed > _ROOT:
        return "/".join([*names[:fixed], "*"])
    return None if _is_glob(uri) else uri


def _names(pattern: str, folder: str) -> bool:
    """Returns whether the entry explicitly names ``folder`` or a part of it."""
    fixed = pattern.partition("*")[0]
    return fixed.startswith(f"{folder}/") or (fixed == pattern and pattern.rstrip("/") == folder)


def _inside(uri: str, folder: str) -> bool:
    """Returns whether everything that ``uri`` can match is inside ``folder``."""
    depth = len(folder.split("/"))
    names = uri.split("/")
    return len(names) > depth and names[:depth] == folder.split("/")


def _touches(uri: str, guarded: str, *, folder: bool) -> bool:
    """Returns whether ``uri`` can match ``guarded`` or something inside it.

    With ``folder``, which includes everything below ``uri``, also whether it can match a parent of ``guarded``.
    """
    names, fixed = uri.split("/"), guarded.split("/")
    if len(names) < len(fixed) and not folder:
        return False
    return all(_may_match(name, there) for name, there in zip(names, fixed, strict=False))


def _may_match(name: str, there: str) -> bool:
    """Returns whether a name with wildcards can match the name ``there``. Linear in the product of their lengths."""
    wanted = _parts(name)
    reached = {0}
    for part in wanted:
        if part is None:
            reached = set(range(min(reached), len(there) + 1)) if reached else reached
        else:
            reached = {at + 1 for at in reached if at < len(there) and (not part or there[at] in part)}
    return len(there) in reached


def _spelled(characters: str) -> str:
    """Returns ``a-c`` written out; ``\\0``, which occurs in no name, if there are no characters."""
    found: list[str] = []
    for match in re.finditer(r"(.)-(.)|.", characters):
        begin, end = match[1], match[2]
        found += map(chr, range(ord(begin), ord(end) + 1)) if begin else [match[0]]
    return "".join(found) or "\0"


def _parts(name: str) -> list[str | None]:
    """Returns what each part of ``name`` matches: one of these characters, any one (empty), or any number (None).

    The end of a character set is not always clear: from an unclear one on, the rest of the name matches anything.
    """
    parts: list[str | None] = []
    rest = name
    while rest:
        if rest[0] == "[":
            plain = _PLAIN_SET.match(rest)
            if plain is None:
                return [*parts, None]
            parts.append(_spelled(plain[1]))
            rest = rest[plain.end() :]
            continue
        parts.append({"*": None, "?": ""}.get(rest[0], rest[0]))
        rest = rest[1:]
    return parts


def _is_glob(uri: str) -> bool:
    return bool(_WILDCARDS & set(uri))


def _is_file(uri: str) -> bool:
    return uri.startswith("file:")
