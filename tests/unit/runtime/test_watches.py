from finetune_operator.cluster.port import JOBS, PODS, PROFILES, WORKLOADS, WatchStream
from finetune_operator.reconcile.watch_streams import DEAD_SECONDS, WatchStreams
from finetune_operator.runtime.prerequisites import watches


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_paths_are_those_of_the_requests() -> None:
    assert WatchStream(JOBS, None).path == "/apis/tpu-finetune.dev/v1alpha1/finetunejobs"
    assert WatchStream(PODS, "team").path == "/api/v1/namespaces/team/pods"


def test_every_namespace_has_its_own_watches_and_profiles_one_for_all() -> None:
    assert len(watches([], kueue=False)) == 4
    several = watches(["a", "b"], kueue=True)
    assert len(several) == 9
    assert several.count(WatchStream(WORKLOADS, "a")) == 1
    assert several.count(WatchStream(PROFILES, None)) == 1


def test_a_watch_that_never_came_up_is_dead_after_a_while() -> None:
    clock = Clock()
    streams = WatchStreams([WatchStream(JOBS, None), watch := WatchStream(PODS, None)], clock=clock)
    clock.now = DEAD_SECONDS + 1
    streams.accepted(watch.path)
    assert streams.dead() == (f"the watch of finetunejobs has received nothing for {DEAD_SECONDS + 1} s",)


def test_events_and_accepted_requests_are_signs_of_life() -> None:
    clock = Clock()
    watch = WatchStream(JOBS, None)
    streams = WatchStreams([watch], clock=clock)
    clock.now = DEAD_SECONDS
    streams.accepted(watch.path)
    clock.now += DEAD_SECONDS
    streams.accepted(watch.path)
    clock.now += DEAD_SECONDS
    streams.accepted("/version")
    assert streams.dead() == ()
    clock.now += 1
    assert len(streams.dead()) == 1


def test_the_life_of_one_namespace_does_not_hide_the_death_of_another() -> None:
    clock = Clock()
    streams = WatchStreams([WatchStream(JOBS, "a"), WatchStream(JOBS, "b")], clock=clock)
    clock.now = DEAD_SECONDS + 1
    streams.accepted(WatchStream(JOBS, "a").path)
    assert len(streams.dead()) == 1
