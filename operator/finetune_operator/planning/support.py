"""Fields that the API accepts, but this version does not support. They are refused by name, never ignored."""

from collections.abc import Mapping
from typing import Any

from finetune_operator.api import Reason
from finetune_operator.planning.errors import Refused

#: Section and field of a profile.
_LATER = (("storage", "optimizerStateTTLSeconds"),)


def refuse_later_fields(name: str, spec: Mapping[str, Any]) -> None:
    """Raises Refused, naming every field of a profile whose behavior comes in a later version."""
    found = [
        f"spec.{section}.{field} = {value} (remove it)"
        for section, field in _LATER
        if (value := spec.get(section, {}).get(field)) is not None
    ]
    if found:
        raise Refused(
            Reason.NOT_YET_SUPPORTED,
            f'profile "{name}": this version of the operator does not support yet: {"; ".join(found)}.',
        )
