"""What a job was given and what it left: data, configuration, checkpoints and exported files."""

import json
from collections.abc import Mapping

from finetune_contract import Artifact, DatasetDetails, SampleRow
from finetune_operator.results.comparison.configuration import settings_of
from finetune_operator.results.records import RunRecords, decimal_at, list_at, lookup, text_at, whole_at
from finetune_operator.results.report.model import (
    CheckpointReport,
    Configuration,
    DataSummary,
    ExportReport,
    Files,
    bounded,
)

#: Datasets that are shown; of each the buckets of its histogram, the kinds of notable rows, and the first places.
_MOST_SETS, _MOST_BUCKETS, _MOST_KINDS, _MOST_PLACES = 32, 64, 8, 5
#: Rows that are shown as they are trained, and their pieces.
_MOST_SAMPLES, _MOST_PIECES = 3, 64
#: Characters of such a row, of a remark, and of any other text of the data report.
_SAMPLE, _REMARK, _NAME = 2000, 1000, 256
#: Settings, characters of the spec and its depth.
_MOST_SETTINGS, _SPEC, _DEEPEST = 400, 16_000, 32
#: Files of an export, artifacts and checkpoints.
_MOST_FILES, _MOST_ARTIFACTS, _MOST_CHECKPOINTS = 200, 32, 50


def data(run: RunRecords) -> DataSummary | None:
    """Returns the check of the data, bounded; None before Preflight has read it."""
    found = run.data
    if found is None:
        return None
    train = found.train[:_MOST_SETS]
    validation = found.validation[: _MOST_SETS - len(train)]
    evaluation = found.evaluation[: _MOST_SETS - len(train) - len(validation)]
    samples = [_sample(each) for each in found.samples[:_MOST_SAMPLES]]
    shown = found.model_copy(
        update={
            "train": [_details(each) for each in train],
            "validation": [_details(each) for each in validation],
            "evaluation": [_details(each) for each in evaluation],
            "remarks": bounded(found.remarks, text=_REMARK, items=_MOST_SETS),
            "benchmarks": [],
            "leaks": bounded(found.leaks, text=_NAME, items=_MOST_SETS),
            "samples": bounded(samples, text=_SAMPLE, items=_MOST_PIECES),
            "prepared": [],
        }
    )
    everything = len(found.train) + len(found.validation) + len(found.evaluation)
    left_out = everything - len(train) - len(validation) - len(evaluation)
    return DataSummary(report=bounded(shown, text=_SAMPLE, items=_MOST_PIECES), left_out=left_out)


def _details(details: DatasetDetails) -> DatasetDetails:
    found = [
        each.model_copy(update={"first": each.first[:_MOST_PLACES]}) for each in details.found[:_MOST_KINDS]
    ]
    return bounded(details.model_copy(update={"found": found}), text=_NAME, items=_MOST_BUCKETS)


def _sample(row: SampleRow) -> SampleRow:
    """Returns a row as it is trained, cut to _SAMPLE characters."""
    left = _SAMPLE
    pieces: list[tuple[bool, str]] = []
    for trained, text in row.pieces:
        if left <= 0 or len(pieces) == _MOST_PIECES - 1:
            pieces.append((False, "…"))
            break
        pieces.append((trained, text[:left]))
        left -= len(text)
    return row.model_copy(update={"pieces": pieces})


def configuration(run: RunRecords) -> Configuration | None:
    """Returns the settings; None if neither a request nor a spec is known."""
    settings = list(settings_of(run).items())
    spec = _spec(run.spec)
    if not settings and not spec:
        return None
    return Configuration(
        settings=settings[:_MOST_SETTINGS], left_out=max(0, len(settings) - _MOST_SETTINGS), spec=spec
    )


def _spec(spec: Mapping[str, object]) -> str:
    if not spec:
        return ""
    text = json.dumps(_bounded(spec, _DEEPEST), indent=2, ensure_ascii=False)
    return text if len(text) <= _SPEC else f"{text[:_SPEC]}…"


def _bounded(value: object, depth: int) -> object:
    """Returns plain JSON without what is nested deeper than ``depth``, and with integers of at most 20 digits."""
    if isinstance(value, Mapping):
        return {str(key): _bounded(each, depth - 1) for key, each in value.items()} if depth else "…"
    if isinstance(value, list):
        return [_bounded(each, depth - 1) for each in value] if depth else "…"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return float(value) if abs(value) < 10**300 else "…"
    return value


def files(run: RunRecords) -> Files | None:
    """Returns exports and checkpoints; None if there are none."""
    artifacts = run.export.artifacts[:_MOST_ARTIFACTS] if run.export else ()
    exports = [_export(each, run) for each in artifacts]
    checkpoints = _checkpoints(run)
    return Files(exports=exports, checkpoints=checkpoints) if exports or checkpoints else None


def _export(artifact: Artifact, run: RunRecords) -> ExportReport:
    # Copies at destinations have the same names, and the run folder may have been copied elsewhere since.
    own = (
        run.export is not None and artifact.uri == f"{run.export.manifest.rpartition('/')[0]}/{artifact.name}"
    )
    manifest = run.manifests.get(artifact.name) if own else None
    listed = manifest.files if manifest else ()
    return ExportReport(
        artifact=artifact.model_copy(update={"name": artifact.name[:64], "digest": artifact.digest[:128]}),
        matches=None if manifest is None else artifact.digest.removeprefix("sha256:") == manifest.digest,
        files=listed[:_MOST_FILES],
        left_out=max(0, len(listed) - _MOST_FILES),
    )


def _checkpoints(run: RunRecords) -> list[CheckpointReport]:
    found = []
    for each in list_at(run.status, "checkpoints")[-_MOST_CHECKPOINTS:]:
        step = whole_at(each, "step")
        if step is None:
            continue
        metrics = lookup(each, "metrics")
        names = list(metrics)[:16] if isinstance(metrics, Mapping) else []
        values = {str(name)[:128]: decimal_at(metrics, name) for name in names}
        found.append(
            CheckpointReport(
                step=step,
                uri=text_at(each, "uri"),
                metrics={name: value for name, value in values.items() if value is not None},
                tags=[str(tag)[:32] for tag in list_at(each, "tags")[:4]],
            )
        )
    return found
