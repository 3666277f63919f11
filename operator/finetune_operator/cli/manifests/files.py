"""Reads manifests from files and folders, as kubectl does, and checks each object's schema."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from finetune_operator.api import GROUP
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.manifests.validate import Manifest, Problem, checked_objects
from finetune_operator.objects import Object

#: Of the files in a folder, those with another extension are left out.
EXTENSIONS = (".json", ".yaml", ".yml")
#: Characters of a file. An object has at most 1.5 MB.
_MOST = 2**24
#: Most objects that are named as skipped.
_NAMED = 8


@dataclass(frozen=True, slots=True)
class ManifestSet:
    """The objects of several files."""

    jobs: list[Manifest] = field(default_factory=list)
    """Those with a valid schema."""
    profiles: list[Manifest] = field(default_factory=list)
    """Those with a valid schema; of two with the same name the last one, as if they were applied in order."""
    others: list[Object] = field(default_factory=list)
    """Objects of other kinds."""
    problems: dict[str, list[str]] = field(default_factory=dict)
    """What the API server would refuse, and files that cannot be read, by file."""
    files: list[str] = field(default_factory=list)
    """The files that contain a job or a profile, valid or not, or that cannot be read."""
    repeated: list[str] = field(default_factory=list)
    """A remark for each object that occurs a second time."""

    @property
    def objects(self) -> list[Object]:
        """The content of all valid objects, those of other kinds included."""
        return [*(each.content for each in (*self.jobs, *self.profiles)), *self.others]


def read_manifests(
    paths: Sequence[Path], namespace: str | None = None, *, recursive: bool = False
) -> ManifestSet:
    """Reads files, all files of folders, and ``-``, stdin, in order; a file that is named twice once.

    Args:
        paths: files and folders.
        namespace: the namespace of jobs whose manifest names none; None: they stay without one.
        recursive: whether the folders below a folder are read, too.
    """
    found, seen = ManifestSet(), set[Path]()
    for given in paths:
        for path in _files(given, recursive=recursive):
            if isinstance(path, CliError):
                _add_unreadable(found, str(given), path)
            elif (same := path if is_stdin(path) else path.resolve()) not in seen:
                seen.add(same)
                _read_into(found, path, namespace)
    return found


def _files(path: Path, *, recursive: bool) -> Iterator[Path | CliError]:
    """Yields the file, or the manifests in the folder in the order of their names; or an error."""
    if is_stdin(path) or not path.is_dir():
        yield path
        return
    empty = True
    try:
        for each in _below(path, recursive=recursive):
            empty = False
            yield each
    except OSError as error:
        yield CliError(f"{error.filename}: {error.strerror or error}")
    else:
        if empty:
            hint = "" if recursive else "; -R reads the folders below it, too"
            yield CliError(f"{path}: contains no file that ends in {', '.join(EXTENSIONS)}{hint}")


def _below(folder: Path, *, recursive: bool) -> Iterator[Path | CliError]:
    with os.scandir(folder) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if recursive:
                yield from _below(Path(entry.path), recursive=True)
        elif entry.name.endswith(EXTENSIONS):
            path = Path(entry.path)
            # A pipe would be waited for, and a device has no end.
            yield path if path.is_file() or not path.exists() else CliError(f"{path}: is not a file")


def _read_into(found: ManifestSet, path: Path, namespace: str | None) -> None:
    file = "stdin" if is_stdin(path) else str(path)
    try:
        text = _text(path)
    except CliError as error:
        _add_unreadable(found, file, error)
        return
    for item in checked_objects(text, file=file):
        if not isinstance(item, Problem) and not item.is_ours:
            found.others.append(item.content)
            continue
        if file not in found.files:
            found.files.append(file)
        if isinstance(item, Problem):
            found.problems.setdefault(file, []).append(str(item))
        elif item.content["kind"] == "FineTuneJob":
            job = replace(item, content=in_namespace(item.content, namespace))
            _add(found.jobs, job, found.repeated)
        else:
            _add(found.profiles, item, found.repeated)


def _add_unreadable(found: ManifestSet, name: str, error: CliError) -> None:
    found.problems.setdefault(name, []).append(error.message)
    found.files.append(name)


def _add(known: list[Manifest], new: Manifest, repeated: list[str]) -> None:
    """Adds an object in place of one with the same name. Each generated name is another one."""
    for each in known:
        if _key(each) == _key(new) and "generateName" not in new.content["metadata"]:
            repeated.append(
                f"{new.where}: {new.content['kind']} {new.name} replaces the one in {each.where}, "
                "as it does if both are applied."
            )
            known.remove(each)
            break
    known.append(new)


def _key(manifest: Manifest) -> tuple[object, str]:
    return manifest.content["metadata"].get("namespace"), manifest.name


def is_stdin(path: Path) -> bool:
    """Whether the path stands for stdin."""
    return str(path) == "-"


def _text(path: Path) -> str:
    """Returns the text of a file or of stdin. Raises CliError if it cannot be read."""
    name = "stdin" if is_stdin(path) else path
    try:
        if is_stdin(path):
            text = sys.stdin.read(_MOST + 1)
        else:
            with path.open(encoding="utf-8") as stream:
                text = stream.read(_MOST + 1)
    except OSError as error:
        raise CliError(f"{name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{name}: is not UTF-8 text") from error
    if len(text) > _MOST:
        raise CliError(f"{name}: has more than {_MOST:,} characters, and is not read")
    return text


def in_namespace(job: Object, namespace: str | None) -> Object:
    """Returns the job as ``kubectl -n`` would create it."""
    return {**job, "metadata": {"namespace": namespace, **job["metadata"]}} if namespace else job


def skipped(others: Sequence[Object], used: Sequence[Object] = ()) -> str:
    """Returns one line that names the objects of other kinds, without those in ``used``. Empty if there are none."""
    names = [f"{each.get('kind')} {_name(each)}".strip() for each in others if each not in used]
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"Skipped, as only FineTuneJobs and FineTuneProfiles are read: {', '.join(names[:_NAMED])}{more}."


def _name(item: Object) -> str:
    metadata = item.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    """Returns the objects of one kind of the operator's API group."""
    return [
        each
        for each in objects
        if each.get("kind") == kind and str(each.get("apiVersion", "")).startswith(f"{GROUP}/")
    ]
