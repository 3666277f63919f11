"""What a job was trained with that its export does not name: settings of the chat template, the base's revision."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from finetune_operator.artifacts.port import ObjectStore, StorageError
from finetune_operator.cli.run_folder import JobRun, explanation
from finetune_operator.results.reader import RunReader

#: A commit; libraries would use any other text as a part of paths.
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedWith:
    """Settings of a training, as far as its records name them."""

    template_arguments: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """``datasets.chatTemplate.arguments``."""
    template_date: date | None = None
    """Date that the chat template prints as the current one. None: that of the present day."""
    model: str = ""
    """Repository or URI of the base model."""
    revision: str | None = None
    """Commit of the base model's repository."""
    unreadable: Sequence[str] = ()
    """Why settings are not known, one sentence for each record."""


async def trained_with(run: JobRun, store: ObjectStore) -> TrainedWith:
    """Returns the settings that the records in the run folder name. Never raises: they are not required."""
    reader = RunReader(run.folder, store)
    try:
        request, preflight = await asyncio.gather(reader.last_request(), reader.preflight())
    except StorageError as error:
        return TrainedWith(unreadable=(explanation(error).message,))
    model = preflight.model if preflight else None
    commit = model.revision if model and _COMMIT.fullmatch(model.revision) else None
    return TrainedWith(
        template_arguments=request.data.chat_template_arguments if request else {},
        template_date=request.data.chat_template_date if request else None,
        model=model.source if model else "",
        revision=commit,
        unreadable=tuple(reader.unreadable),
    )
