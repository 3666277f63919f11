"""A job that starts from a MaxText checkpoint: nothing is converted, and no proof is claimed."""

from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.planning import Refused, admit
from tests.unit.lifecycle.world import World, job, profile

ITEMS = "gs://models/tiny-maxtext/0/items"
MODEL = {
    "orbax": {"uri": ITEMS},
    "maxtextModel": "qwen3-0.6b",
    "tokenizer": {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}},
}


def test_convert_is_skipped_and_training_receives_the_checkpoint() -> None:
    world = World(job=job(model=MODEL))
    world.to_the_end()
    assert world.status["phase"] == "Succeeded"
    received = {world.key_of(name).stage: world.request(name) for name in world.created}
    assert list(received) == [stage for stage in Stage if stage is not Stage.CONVERT]
    assert received[Stage.TRAIN].converted == received[Stage.EVALUATE].converted == ITEMS
    # As preflight found it: from then on different content is an error.
    assert received[Stage.TRAIN].model.digest == "sha256:1"
    convert = next(each for each in world.status["stages"] if each["name"] == "Convert")
    assert convert == {"name": "Convert", "phase": "Skipped", "reason": "ProvidedCheckpoint"}
    proven = world.condition("ExportProven")
    assert (proven["status"], proven["reason"]) == ("Unknown", "NotChecked")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"models": {"allow": ["Qwen/*"]}}, f"does not cover spec.model {ITEMS}"),
        (
            {"constraints": {"uris": {"read": ["gs://data/*"]}}},
            f"does not cover spec.model.orbax.uri {ITEMS}",
        ),
    ],
)
def test_the_profiles_rules_apply_to_a_provided_checkpoint(rules: Any, expected: str) -> None:
    with pytest.raises(Refused) as caught:
        admit(job(model=MODEL), [profile(**rules)])
    assert caught.value.reason == Reason.POLICY_VIOLATION
    assert expected in caught.value.message


def test_a_path_that_is_not_an_items_folder_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        admit(job(model={**MODEL, "orbax": {"uri": "gs://models/tiny-maxtext/0"}}), [profile()])
    assert caught.value.reason == Reason.INVALID_SPEC
    assert "it ends in /items" in caught.value.message
