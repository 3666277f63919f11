"""Finds the settings and the data that differ between runs."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from finetune_contract import DatasetReport
from finetune_operator.results.comparison.model import SettingDifference
from finetune_operator.results.records import RunRecords, lookup

#: Fields of a request that identify an attempt, locate its files or follow from other fields.
_NOT_SETTINGS = frozenset(
    {
        "version", "requires", "job", "stage", "attempt", "restart", "run_folder", "cache", "use_cache", "memory",
        "smoke", "fingerprint", "converted", "converted_files_digest", "train_step", "profiling", "path",
        "max_seq_length_explicit", "token_variable", "chat_template_date",
    }
)  # fmt: skip
#: Fields of a request whose keys are not names of fields.
_MAPS = frozenset({"columns", "role_map", "engine_overrides", "tuning", "chat_template_arguments"})
#: Paths of a request that differ from those of the spec.
_SPEC_PATHS = (
    ("data.check", "preflight.dataset"),
    ("data.chatTemplateArguments", "datasets.chatTemplate.arguments"),
    ("data.chatTemplate", "datasets.chatTemplate.inline"),
    ("data.", "datasets."),
    ("evaluation.maxNewTokens", "evaluation.generation.maxNewTokens"),
    ("evaluation.temperature", "evaluation.generation.temperature"),
    ("evaluation.topK", "evaluation.generation.topK"),
    ("checkpointing.keepLast", "checkpointing.keep.last"),
    ("checkpointing.keepBest", "checkpointing.keep.best"),
)
#: Fields of the spec that steer a job and do not decide its result.
_STEERING = frozenset({"suspend", "retry", "cancel", "childTTLSecondsAfterFinished", "cache", "budget"})
#: Facts of ``status.resolved`` that requests do not contain, and explanations in them.
_RESOLVED, _EXPLANATIONS = ("profile", "resources", "images", "checkpoint"), frozenset({"why"})
#: Numbers of the data report.
_DATA = ("revision", "format", "rows", "tokens", "trained_tokens", "truncated_rows", "dropped_rows", "weight")
_DEEPEST, _LONGEST = 16, 160

type Settings = Iterator[tuple[str, str]]


def setting_differences(runs: Mapping[str, RunRecords]) -> list[SettingDifference]:
    """Returns the settings that are not equal in all runs, sorted by path.

    The settings are those of the resolved requests or, unless each run has started a stage, of the specs as written.
    Facts of the data report and of ``status.resolved`` are compared only if all runs have them.
    """
    settings: dict[str, dict[str, str]] = {label: {} for label in runs}
    groups = [[_of_request(run) for run in runs.values()]]
    if not all(groups[0]):
        groups = [[_of_spec(run) for run in runs.values()]]
    groups += [[_of_data(run) for run in runs.values()], [_of_status(run) for run in runs.values()]]
    for group in groups:
        if all(group):
            for label, found in zip(runs, group, strict=True):
                settings[label] |= found
    paths = sorted({path for each in settings.values() for path in each})
    compared = [(path, {label: each.get(path) for label, each in settings.items()}) for path in paths]
    return [
        SettingDifference(path=path, values=each) for path, each in compared if len(set(each.values())) > 1
    ]


def settings_of(run: RunRecords) -> dict[str, str]:
    """Returns the settings of one run by path, sorted: those of its resolved request or, before a stage has started, of
    its spec as written; with the facts of the data report and of ``status.resolved``."""
    found = {**(_of_request(run) or _of_spec(run)), **_of_data(run), **_of_status(run)}
    return dict(sorted(found.items()))


def _of_request(run: RunRecords) -> dict[str, str]:
    if run.request is None:
        return {}
    document = json.loads(run.request.model_dump_json(exclude_none=True, exclude=set(_NOT_SETTINGS)))
    return dict(_flat("", document, fields=True))


def _of_spec(run: RunRecords) -> dict[str, str]:
    return dict(_flat("", {name: each for name, each in run.spec.items() if name not in _STEERING}))


def _of_status(run: RunRecords) -> dict[str, str]:
    return {
        path: value
        for name in _RESOLVED
        for path, value in _flat(f"resolved.{name}", lookup(run.status, "resolved", name))
        if path.rpartition(".")[2] not in _EXPLANATIONS
    }


def _of_data(run: RunRecords) -> dict[str, str]:
    found = run.preflight
    if found is None:
        return {}
    reports: Mapping[str, Sequence[DatasetReport]] = {
        "train": found.train,
        "validation": found.validation,
        "evaluation": found.evaluation,
    }
    named = {name: [_report(each) for each in given] for name, given in reports.items()}
    return dict(_flat("resolved.datasets", named, fields=True))


def _report(report: BaseModel) -> Mapping[str, object]:
    return report.model_dump(include={"name", *_DATA}, exclude_none=True)


def _flat(path: str, value: object, *, fields: bool = False, depth: int = 0) -> Settings:
    """Yields path and text of each value inside ``value``.

    Args:
        path: path of ``value``; empty for the whole document.
        value: plain JSON.
        fields: whether keys are the contract's names of fields, which become those of the spec.
        depth: nesting of ``value``; what is deeper than _DEEPEST is left out.
    """
    if value is None or depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        for key, each in value.items():
            if fields and key in _NOT_SETTINGS:
                continue
            name = to_camel(str(key)) if fields else str(key)
            below = path if fields and key == "source" else f"{path}.{name}" if path else name
            yield from _flat(below, each, fields=fields and key not in _MAPS, depth=depth + 1)
    elif isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
        for key, each in zip(_keys(value), value, strict=True):
            yield from _flat(f"{path}[{key}]", each, fields=fields, depth=depth + 1)
    elif value != []:
        yield _spec_path(path)[:256], _text(value)


def _keys(items: Sequence[object]) -> list[str]:
    """Returns the names of the items, or their positions unless each has a name of its own."""
    names = [lookup(each, "name") or lookup(each, "source", "name") for each in items]
    if len(set(map(str, names))) == len(items) and all(isinstance(each, str) for each in names):
        return [str(each) for each in names]
    return [str(number) for number in range(len(items))]


def _spec_path(path: str) -> str:
    for prefix, renamed in _SPEC_PATHS:
        if path.startswith(prefix):
            return renamed + path.removeprefix(prefix)
    return path


def _text(value: object) -> str:
    """Returns a value as one text; a long one by its beginning, length and digest."""
    if isinstance(value, list):
        text = ", ".join(map(_text, value))
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    return f"{text[:60]}… ({len(text):,} characters, sha256 {digest[:12]})"
