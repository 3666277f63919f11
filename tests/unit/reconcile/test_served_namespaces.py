"""When a served namespace counts as lost, and what the others notice of it."""

import pytest

from finetune_operator.cluster.port import JOBS, PODS, PROFILES, WatchStream
from finetune_operator.reconcile.served_namespaces import LOST_SECONDS, ServedNamespaces
from tests.unit.cluster.fake_time import FakeTime

JOBS_OF_B, PODS_OF_B = WatchStream(JOBS, "b"), WatchStream(PODS, "b")


class Served(ServedNamespaces):
    """Counts its notifications."""

    def __init__(self, *names: str) -> None:
        self.time = FakeTime()
        super().__init__(names, utc_now=self.time.utc_now, clock=self.time.clock, chips=len)
        self.notified = 0
        self.changed = self._notify

    def _notify(self, _namespace: str) -> None:
        self.notified += 1


def test_one_that_is_refused_for_long_enough_is_lost_and_the_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    served = Served("a", "b")
    served.refused(PODS_OF_B, "pods is forbidden")
    served.time.now += LOST_SECONDS - 1
    served.refused(PODS_OF_B, "pods is forbidden")
    assert served.serves("b")
    served.time.now += 1
    served.refused(PODS_OF_B, "pods is forbidden")
    served.refused(PODS_OF_B, "pods is forbidden")
    assert (served.serves("a"), served.serves("b"), served.lost(), served.notified) == (
        True,
        False,
        {"b": 1},
        1,
    )
    assert "namespace b is not served: pods is forbidden" in caplog.text
    assert "1 chips that were at work count on" in caplog.text
    assert served.problems() == ()


def test_one_kind_that_is_refused_is_enough_and_all_must_be_back() -> None:
    served = Served("a", "b")
    for stream in (JOBS_OF_B, PODS_OF_B):
        served.refused(stream, "no", at_once=True)
    served.answered(JOBS_OF_B)
    assert not served.serves("b")
    served.time.now += 60
    assert served.unobserved_until("b") == served.time.utc_now()
    served.answered(PODS_OF_B)
    back = served.time.utc_now()
    served.time.now += 60
    assert (served.serves("b"), served.lost(), served.notified) == (True, {}, 2)
    assert (served.unobserved_until("b"), served.unobserved_until("a")) == (back, None)


def test_a_binding_that_is_replaced_or_comes_and_goes_is_no_loss() -> None:
    served = Served("a", "b")
    for _ in range(20):
        served.refused(PODS_OF_B, "no")
        served.time.now += LOST_SECONDS / 2
        served.answered(PODS_OF_B)
    assert (served.serves("b"), served.notified, served.unobserved_until("b")) == (True, 0, None)


def test_without_any_namespace_the_process_cannot_work() -> None:
    served = Served("a", "b")
    for name in ("a", "b"):
        served.refused(WatchStream(JOBS, name), "no", at_once=True)
    assert [problem.split(" is ")[0] for problem in served.problems()] == ["namespace a", "namespace b"]


def test_an_operator_of_all_namespaces_loses_none() -> None:
    served = Served()
    for stream in (WatchStream(PROFILES, None), WatchStream(JOBS, None)):
        served.refused(stream, "no", at_once=True)
        served.answered(stream)
    assert (served.serves("any"), served.lost(), served.problems(), served.notified) == (True, {}, (), 0)
    assert not Served("a").serves("of-another-release")
