"""The answers that Evaluate has recorded: ``evaluate/samples.jsonl``."""

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from finetune_contract import Sample
from finetune_operator.artifacts.port import ObjectStore
from finetune_operator.cli import text
from finetune_operator.cli.run_folder import JobRun, explained

#: Bytes of the file that are read, and samples and characters of each text that are shown.
_READ = 4 * 2**20
_SHOWN = 5
_CHARACTERS = 2000
_LABELS = {"prompt": "Prompt", "baseline": "Base model", "tuned": "Tuned model", "reference": "Reference"}


async def recorded_samples(run: JobRun, store: ObjectStore) -> list[Sample]:
    """Returns the first recorded samples; empty if there are none. Lines that are no samples are left out."""
    with explained():
        content = await store.read_part(run.folder.evaluation_samples, start=0, size=_READ)
    found: list[Sample] = []
    for line in (content or b"").splitlines():
        if len(found) == _SHOWN:
            break
        try:
            found.append(Sample.model_validate_json(line))
        except ValidationError:
            continue
    return found


def sample_lines(samples: Sequence[Sample], uri: str) -> Iterator[str]:
    """Yields the samples as text: each prompt with the answers of both models and the reference."""
    for sample in samples:
        for field, label in _LABELS.items():
            value = getattr(sample, field)
            if value is None:
                continue
            yield f"{label}:"
            shown = text.printable(value[:_CHARACTERS]) + ("…" if len(value) > _CHARACTERS else "")
            yield from (f"  {line}" for line in (shown or "(empty)").split("\n"))
        yield ""
    yield f"The first {len(samples)} of {uri}." if len(samples) > 1 else f"From {uri}."
