"""A profile is asked of training, and told among the artefacts."""

from finetune_contract import ProfilingSpec, Stage, StageRequest, TrainOutcome
from finetune_operator.api import FineTuneJobStatus
from tests.unit.lifecycle.world import World, job


class Profiled(World):
    """Training has recorded a profile."""

    def details(self, request: StageRequest) -> object:
        details = super().details(request)
        if isinstance(details, TrainOutcome):
            return details.model_copy(update={"trace": self.folder.profile})
        return details


def test_the_profile_is_asked_for_and_shown() -> None:
    world = Profiled(job=job(profiling={"startStep": 20}))
    world.to_the_end()
    told = {world.key_of(name).stage: world.request(name).profiling for name in world.created}
    assert told[Stage.TRAIN] == ProfilingSpec(start_step=20, steps=5)
    # Preflight knows how many steps there are.
    assert told[Stage.PREFLIGHT] == told[Stage.TRAIN]
    status = FineTuneJobStatus.model_validate(world.status)
    assert [each.uri for each in status.artifacts or () if each.type == "Trace"] == [world.folder.profile]
