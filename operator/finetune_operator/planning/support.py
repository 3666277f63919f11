"""Fields that the API accepts, but this version does not support. They are refused by name, never ignored."""

from finetune_operator.api import FineTuneProfileSpec, Reason
from finetune_operator.planning.errors import Refused


def refuse_later_fields(name: str, spec: FineTuneProfileSpec) -> None:
    """Raises Refused, naming every field of a profile whose behavior comes in a later version."""
    later = {"storage.optimizerStateTTLSeconds": spec.storage.optimizer_state_ttl_seconds}
    found = [f"spec.{path} = {value} (remove it)" for path, value in later.items() if value is not None]
    if found:
        raise Refused(
            Reason.NOT_YET_SUPPORTED,
            f'profile "{name}": this version of the operator does not support yet: {"; ".join(found)}.',
        )
