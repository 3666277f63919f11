"""Entries of ``evaluation.benchmarks``: a task, or a group or tag of lm-evaluation-harness with all of its tasks.

The harness itself expands a group and aggregates its scores. Nothing is downloaded before every task is accepted.
"""

import difflib
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from lm_eval.api.group import Group
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from lm_eval.tasks._factory import TaskFactory
from lm_eval.tasks._index import Kind

from finetune_contract import BenchmarkReport, BenchmarkSpec
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation import benchmarks
from finetune_trainer.evaluation.benchmarks import LoadedBenchmark
from finetune_trainer.evaluation.plain_tasks import functions, invalid
from finetune_trainer.evaluation.rows import MeasuredRows
from finetune_trainer.storage import StorageClient

#: Maximum number of tasks of one entry.
MOST_TASKS = 256
#: Numbers of names in a message: of refused tasks for each reason, and of others to name instead.
_REFUSED, _INSTEAD = 2, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEntry:
    """One entry of ``evaluation.benchmarks`` with its rows loaded."""

    spec: BenchmarkSpec
    tasks: Sequence[LoadedBenchmark]
    group: Any = None
    """The harness's group of these tasks. None for a single task."""
    commits: Mapping[str, str]
    """Commits of the group's datasets."""

    @property
    def rows(self) -> int:
        return sum(task.rows for task in self.tasks)

    @property
    def digest(self) -> str:
        """Digest of the data's revisions and the numbers of rows used."""
        if self.group is None:
            return self.tasks[0].digest
        return _sha256(*(f"{task.spec.name} {task.digest}" for task in self.tasks))

    @property
    def metrics(self) -> list[str]:
        """The names of the entry's metrics, and of its members' as ``<member>/<metric>``."""
        own, members = self.scores([dict.fromkeys(task.metrics, 0.0) for task in self.tasks])
        return [*own, *(f"{member}/{name}" for member, measured in members.items() for name in measured)]

    def scores(
        self, measured: Sequence[Mapping[str, float]]
    ) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """Returns the entry's scores, and those of its members by name: subgroups, then tasks.

        ``measured``: the scores of each of ``tasks``. All are by short name.
        """
        if self.group is None:
            return dict(measured[0]), {}
        results = {
            task.spec.name: {
                "sample_len": task.rows,
                **{task.metrics[name]: score for name, score in found.items()},
            }
            for task, found in zip(self.tasks, measured, strict=True)
        }
        members = {group.name: _aggregate(group, results) for group in self.group.get_all_groups()}
        members |= {
            task.spec.name: dict(found) for task, found in zip(self.tasks, measured, strict=True) if found
        }
        return _aggregate(self.group, results), {name: found for name, found in members.items() if found}

    def rows_of(self, member: str) -> int:
        """Returns the number of rows of a member."""
        groups = [group for group in self.group.get_all_groups() if group.name == member]
        names = {task.task_name for group in groups for task in group.get_all_tasks()} or {member}
        return sum(task.rows for task in self.tasks if task.spec.name in names)

    def pooled_rows(self, rows: Sequence[MeasuredRows]) -> list[MeasuredRows]:
        """Returns the rows of each of ``tasks`` with those scores whose mean over all rows is the entry's score."""
        if self.group is None or len(self.group.get_all_tasks()) > len(self.tasks):
            # the harness counts a task of two subgroups twice
            return list(rows) if self.group is None else [MeasuredRows() for _ in rows]
        by_size = {each.metric for each in self.group.aggregate_metric_list or () if each.weight_by_size}
        measured = list(zip(self.tasks, rows, strict=True))
        pooled = {
            name
            for name in self.metrics
            if name.partition(",")[0] in by_size
            and all(name in found.scores or name not in task.metrics for task, found in measured)
        }
        return [
            MeasuredRows(scores={name: each for name, each in found.scores.items() if name in pooled})
            for found in rows
        ]

    @property
    def report(self) -> BenchmarkReport:
        """The entry as preflight has read it."""
        first, uris = self.tasks[0], dict.fromkeys(task.uri for task in self.tasks)
        more = f" and {len(uris) - 1} more datasets" if len(uris) > 1 else ""
        return BenchmarkReport(
            path=self.spec.path,
            name=self.spec.name,
            uri=f"{first.uri}{more}",
            revision=first.revision if len(uris) == 1 else _sha256(*uris)[:40],
            rows=self.rows,
            tasks=len(self.tasks),
            revisions=dict(self.commits),
        )


class _Member(ConfigurableTask):  # type: ignore[misc]
    """A task of a group that is not loaded: the group needs no more than its name."""

    def __init__(self, entry: Any, changes: Mapping[str, Any]) -> None:
        self.entry, self.changes = entry, changes

    @property
    def task_name(self) -> str:
        return str(self.entry.name)


class _Expansion(TaskFactory):  # type: ignore[misc]
    """Builds the harness's groups without loading tasks or importing functions."""

    def _build_task(self, entry: Any, overrides: Mapping[str, Any] | None) -> _Member:
        if (other := (overrides or {}).get("task", entry.name)) != entry.name:
            raise ValueError(f"it gives its task {entry.name} the name {other}, which another one has")
        if any(functions(dict(overrides or {}))):
            raise ValueError(f"it replaces functions of its task {entry.name}")
        return _Member(entry, {key: value for key, value in (overrides or {}).items() if key != "tag"})

    def _build_group_members(
        self, member_list: Sequence[Any], group_name: str, overrides: Any, registry: Mapping[str, Any]
    ) -> list[Any]:
        for member in member_list:
            name = member if isinstance(member, str) else member.get("task")
            if (isinstance(member, str) or "group" not in member) and name not in registry:
                raise ValueError(f"{group_name} defines tasks of its own, which have no file of their own")
        found: list[Any] = super()._build_group_members(member_list, group_name, overrides, registry)
        return found

    def _load_full_config(self, entry: Any, overrides: None = None) -> dict[str, Any]:  # noqa: ARG002
        config: dict[str, Any] = deepcopy(entry.cfg)
        return config


@cache
def known() -> Mapping[str, Any]:
    """Returns all tasks, groups and tags of the harness by name. Reading their YAML takes about 10 s."""
    index: Mapping[str, Any] = TaskManager().task_index
    return index


def load(spec: BenchmarkSpec, store: StorageClient, scratch: Path) -> LoadedEntry:
    """Loads one of ``evaluation.benchmarks`` with its rows.

    Raises ``StageError`` 64 or 65 for a task that cannot be used, 66 if there is no such task, and 69 and 77 as ``hub``
    does.
    """
    if spec.uri is not None:
        return LoadedEntry(spec=spec, tasks=[benchmarks.load(spec, store, scratch)], commits={})
    entry = known().get(spec.name)
    if entry is None:
        raise _unknown(spec)
    if entry.kind in (Kind.GROUP, Kind.TAG):
        commits = dict(spec.revisions)
        group = expanded(spec)
        configs = _accepted(spec, group)
        tasks = [
            benchmarks.load_known(_named(spec, name), config, commits, scratch)
            for name, config in configs.items()
        ]
        if spec.revision is not None:  # each task is pinned, too
            tasks = [replace(task, spec=_named(spec, task.spec.name, task.revision)) for task in tasks]
        return LoadedEntry(spec=spec, tasks=tasks, group=group, commits=commits)
    config = benchmarks.resolved(spec, entry.yaml_path)
    task = benchmarks.load_known(spec, config, {}, scratch)
    return LoadedEntry(spec=spec, tasks=[task], commits={})


def expanded(spec: BenchmarkSpec) -> Any:
    """Returns a group or tag of the harness with its subgroups; no task is loaded. Raises ``StageError`` 65."""
    try:
        built = _Expansion().build(known()[spec.name], registry=dict(known()))
    except Exception as error:  # the harness raises anything for a group that it cannot expand
        raise invalid(
            spec, "the harness cannot expand this group", actual=str(error),
            fix="Name tasks or subgroups of it instead.",
        ) from error  # fmt: skip
    if not isinstance(built, list):
        return built
    group = Group(name=spec.name)  # a tag has no aggregates
    for task in built:
        group.add(task)
    return group


def _accepted(spec: BenchmarkSpec, group: Any) -> dict[str, dict[str, Any]]:
    """Returns the configuration of each task by name. Raises ``StageError`` 65 that names those that are refused."""
    members = {task.task_name: task for task in group.get_all_tasks()}
    if len(members) > MOST_TASKS:
        raise invalid(
            spec, "the group has too many tasks", actual=f"{len(members)} tasks",
            expected=f"at most {MOST_TASKS} in one entry", fix=_instead(group, (), most=MOST_TASKS),
        )  # fmt: skip
    configs: dict[str, dict[str, Any]] = {}
    refused: dict[str, list[str]] = {}
    for name, member in members.items():
        try:
            configs[name] = benchmarks.resolved(_named(spec, name), member.entry.yaml_path, member.changes)
        except StageError as error:
            refused.setdefault(error.what, []).append(name)
    if refused:
        names = {name for some in refused.values() for name in some}
        raise invalid(
            spec, f"{len(names)} of the {len(members)} tasks of this group are refused",
            actual="; ".join(f"{_some(some, _REFUSED)}: {why}" for why, some in refused.items()),
            expected="a group whose tasks are all accepted", fix=_instead(group, names),
        )  # fmt: skip
    return configs


def _instead(group: Any, refused: Collection[str], most: int | None = None) -> str:
    usable = list(dict.fromkeys(_usable(group, refused, most)))
    return f"Name instead: {_some(usable, _INSTEAD)}." if usable else "Remove it."


def _usable(group: Any, refused: Collection[str], most: int | None) -> Iterator[str]:
    """Yields the largest subgroups, and the tasks, that can be named instead of the group."""
    for child in group:
        if not isinstance(child, Group):
            if child.task_name not in refused:
                yield child.task_name
            continue
        names = {task.task_name for task in child.get_all_tasks()}
        if child.name in known() and names.isdisjoint(refused) and (most is None or len(names) <= most):
            yield child.name
        else:
            yield from _usable(child, refused, most)


def _unknown(spec: BenchmarkSpec) -> StageError:
    plain = {name.lower(): name for name in known()}
    near = [plain[name] for name in difflib.get_close_matches(spec.name.lower(), plain, n=3, cutoff=0.75)]
    return benchmarks.missing(
        spec, actual=spec.name, expected="a task or group of lm-evaluation-harness, or uri beside the name",
        fix=f"Did you mean {' or '.join(near)}?" if near else "Correct the name, or set uri to the task's folder.",
    )  # fmt: skip


def _named(spec: BenchmarkSpec, task: str, revision: str | None = None) -> BenchmarkSpec:
    return spec.model_copy(update={"name": task, "path": f"{spec.path} ({task})", "revision": revision})


def _aggregate(group: Any, results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the scores of a group by short name, as the harness aggregates those of its tasks."""
    return {
        key.removesuffix(",none"): float(score)
        for key, score in group.aggregate(results).items()
        if "," in key and "_stderr," not in key
    }


def _some(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _sha256(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
