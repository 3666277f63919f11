"""A profiler trace is requested of training and reported among the artifacts."""

from finetune_contract import ProfilingSpec, Stage, StageRequest, TrainOutcome
from finetune_operator.api import FineTuneJobStatus
from tests.unit.lifecycle.world import World, job


class Profiled(World):
    """A world whose training has recorded a profile."""

    def details(self, request: StageRequest) -> object:
        details = super().details(request)
        if isinstance(details, TrainOutcome):
            return details.model_copy(update={"trace": self.folder.profile})
        return details


def test_a_profiler_trace_is_requested_and_listed_as_an_artifact() -> None:
    world = Profiled(job=job(profiling={"startStep": 20}))
    world.to_the_end()
    received = {world.key_of(name).stage: world.request(name).profiling for name in world.created}
    assert received[Stage.TRAIN] == ProfilingSpec(start_step=20, steps=5)
    # Preflight knows how many steps there are.
    assert received[Stage.PREFLIGHT] == received[Stage.TRAIN]
    status = FineTuneJobStatus.model_validate(world.status)
    assert [each.uri for each in status.artifacts or () if each.type == "Trace"] == [world.folder.profile]
