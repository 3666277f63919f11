"""Translates ``spec.export`` into the contract's record, and names the Secrets with tokens."""

import itertools
from collections.abc import Sequence

from finetune_contract import DestinationSpec, ExportSpec, HubDestinationSpec
from finetune_operator.api.common import SecretKeyRef
from finetune_operator.api.export import ExportContent, ExportFormat
from finetune_operator.planning.defaulted import DefaultedDestination, DefaultedJobSpec
from finetune_operator.planning.errors import invalid_spec
from finetune_operator.planning.sections.sources import folder_uri


def resolve_export(spec: DefaultedJobSpec, service_account: str) -> ExportSpec:
    """Resolves ``spec.export``. The manifests for serving run as ``service_account``. Raises Refused."""
    section, content = spec.export, spec.export.content
    orbax = ExportFormat.ORBAX_PARAMS in section.formats
    if ExportFormat.HUGGING_FACE not in section.formats:
        raise invalid_spec(
            "spec.export.formats has no HuggingFace: the other formats are made beside it. Add HuggingFace.",
        )
    if content is not ExportContent.MERGED and spec.method.lora is None:
        raise invalid_spec(
            f"spec.export.content is {content}, but full fine-tuning makes no adapter: "
            "use Merged, or set spec.method.lora.",
        )
    if content is ExportContent.ADAPTER and orbax:
        raise invalid_spec(
            "spec.export.content is Adapter, but the format OrbaxParams holds the merged model: "
            "use Both, or leave OrbaxParams out.",
        )
    serves = section.serving is not None and section.serving.enabled is True
    if content is ExportContent.ADAPTER and serves:
        raise invalid_spec(
            "spec.export.content is Adapter, but the manifests of spec.export.serving serve the merged model: "
            "use Both, or leave serving out.",
        )
    destinations = [_destination(index, each) for index, each in enumerate(section.destinations)]
    _refuse_overlap(destinations)
    return ExportSpec(
        content=content,
        dtype=section.dtype,
        orbax=orbax,
        destinations=destinations,
        serving_account=service_account if serves else None,
    )


def _refuse_overlap(destinations: Sequence[DestinationSpec]) -> None:
    """Raises Refused if a destination would overwrite what the export writes to another one."""
    for first, second in itertools.permutations(destinations, 2):
        one, other = (each.uri or f"hf://{each.hub.repo if each.hub else ''}" for each in (first, second))
        if one == other and second.path > first.path:
            raise invalid_spec(f"{second.path} is the same place as {first.path}: leave one out.")
        if other.startswith(f"{one}/"):
            raise invalid_spec(
                f"{second.path} is in the folder of {first.path}, which its export would replace in part: choose "
                "folders beside each other.",
            )


def _destination(index: int, destination: DefaultedDestination) -> DestinationSpec:
    path = f"spec.export.destinations[{index}]"
    hub = destination.hugging_face_hub
    if hub is None:
        return DestinationSpec(path=path, uri=folder_uri(destination.uri))
    return DestinationSpec(
        path=f"{path}.huggingFaceHub",
        hub=HubDestinationSpec(repo=hub.repo, private=hub.private, token_variable=f"HF_UPLOAD_TOKEN_{index}"),
    )


def upload_tokens(spec: DefaultedJobSpec) -> dict[str, tuple[str, str]]:
    """Maps environment variables to the name and key of the Secret with a destination's token, never to its value."""
    tokens: dict[str, tuple[str, str]] = {}
    for index, destination in enumerate(spec.export.destinations):
        hub = destination.hugging_face_hub
        if hub is None:
            continue
        secret = hub.token_secret_ref or spec.hugging_face_token_secret_ref
        if secret is None:
            raise invalid_spec(
                f"spec.export.destinations[{index}].huggingFaceHub has no token to write with: name a Secret in its "
                "tokenSecretRef, or in spec.huggingFaceTokenSecretRef.",
            )
        tokens[f"HF_UPLOAD_TOKEN_{index}"] = secret_key(secret)
    return tokens


def secret_key(reference: SecretKeyRef) -> tuple[str, str]:
    """Returns the name and the key of a Secret that holds a token."""
    return reference.name, reference.key or "token"
