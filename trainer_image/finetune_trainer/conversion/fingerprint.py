"""The identity of a converted model: its inputs, independent of where it was made or is stored."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

from finetune_trainer.checkpoints.layout import CheckpointLayout
from finetune_trainer.families import ModelPlan

#: Raised when our conversion writes other values for the same model, lays them out otherwise, or refuses more.
CONVERTER = "2"


class Pinned(Protocol):
    @property
    def revision(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    value: str
    inputs: Mapping[str, str]
    """Inputs by name, so that a cache miss can report which one differed."""


def of_model(model: Pinned, plan: ModelPlan, layout: CheckpointLayout) -> Fingerprint:
    """The fingerprint of the model's revision, the settings derived from its config.json, layout and versions."""
    settings = json.dumps(plan.settings(), sort_keys=True)
    inputs = {
        "model": model.revision,
        "settings": hashlib.sha256(settings.encode()).hexdigest()[:16],
        "layout": layout.name,
        "engine": f"maxtext {version('maxtext')}",
        "converter": CONVERTER,
    }
    value = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]
    return Fingerprint(value=value, inputs=inputs)
