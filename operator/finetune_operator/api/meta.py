"""The part of Kubernetes' own object metadata that the operator reads."""

from collections.abc import Mapping

from pydantic import AwareDatetime, BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ObjectMeta(BaseModel):
    """``metadata`` as the API server stores it; open, because Kubernetes owns it."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    name: str
    namespace: str | None = None
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: AwareDatetime | None = None
    deletion_timestamp: AwareDatetime | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
