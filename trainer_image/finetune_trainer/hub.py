"""Snapshots of the Hugging Face Hub, pinned to a commit, through the hub's own cache.

``HF_HUB_OFFLINE``, ``HF_HOME`` and ``HF_TOKEN`` act as everywhere; with a filled cache nothing is asked of the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finetune_contract import ExitCode, HubRef
from finetune_trainer.errors import StageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    path: Path
    commit: str


def snapshot(
    ref: HubRef, kind: Literal["model", "dataset"], where: str, *, include: Sequence[str] | None = None
) -> Snapshot:
    """Fetches the files that match ``include`` (None: all); ``where`` is the place in the user's spec.

    Raises ``StageError`` 66 for a repository or revision that is not there, 77 for one that asks for a licence or
    token, 69 when the hub does not answer.
    """
    from huggingface_hub import errors, snapshot_download

    saw = f"{ref.repo}@{ref.revision}"
    try:
        path = Path(
            snapshot_download(
                ref.repo,
                repo_type=kind,
                revision=ref.revision,
                allow_patterns=list(include) if include else None,
            )
        )
    except errors.GatedRepoError as error:
        raise StageError(
            ExitCode.PERMISSION_DENIED, "HubAccessDenied", "the repository asks for its terms to be accepted",
            where=where, saw=saw, fix="Accept the terms on the hub and name a token in huggingFaceTokenSecretRef.",
        ) from error  # fmt: skip
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise StageError(
            ExitCode.INPUT_MISSING, "HubRepositoryMissing",
            f"the hub has no such {kind} or revision, or the token may not see it", where=where, saw=saw,
            expected=f"a {kind} repository", fix="Correct the name, or name a token in huggingFaceTokenSecretRef.",
        ) from error  # fmt: skip
    except errors.LocalEntryNotFoundError as error:
        raise StageError(
            ExitCode.UNAVAILABLE, "HubUnavailable", "the hub did not answer and the local cache does not hold it",
            where=where, saw=saw, fix="Nothing to change: the operator tries again.",
        ) from error  # fmt: skip
    except errors.HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in (401, 403):
            raise StageError(
                ExitCode.PERMISSION_DENIED, "HubAccessDenied", "the hub refused the request", where=where, saw=saw,
                fix="Check the token in huggingFaceTokenSecretRef.",
            ) from error  # fmt: skip
        raise StageError(
            ExitCode.UNAVAILABLE, "HubUnavailable", "the hub did not answer as it should", where=where, saw=saw,
            fix="Nothing to change: the operator tries again.",
        ) from error  # fmt: skip
    return Snapshot(path=path, commit=path.name)
