"""The aims of the figures, and the comparison with what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: A figure may miss its aim by this share of the aim.
TOLERANCE = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The aim of one figure."""

    name: str
    aim: float
    at_least: bool = False
    """The figure should be at least the aim, rather than at most."""

    def met(self, value: float, tolerance: float = 0.0) -> bool:
        """Whether the value misses the aim by no more than that share of it."""
        if self.at_least:
            return value >= self.aim * (1 - tolerance)
        return value <= self.aim * (1 + tolerance)


def _against(phase: str, peer: str, rate: float, p99: float) -> tuple[Target, Target]:
    return (
        Target(name=f"{phase}, jobs per s against {peer}", aim=rate, at_least=True),
        Target(name=f"{phase}, p99 against {peer}", aim=p99),
    )


#: Kubeflow Trainer's own pod has an image and nothing else.
_TRIVIAL, _EQUAL = "Kubeflow Trainer", "Kubeflow Trainer, equal JobSets"
_TARGETS = (
    *_against("backlog: start → first JobSet", _TRIVIAL, 1.0, 1.05),
    *_against("backlog: start → first JobSet", _EQUAL, 1.4, 0.75),
    *_against("burst: create → first JobSet", _TRIVIAL, 0.95, 1.05),
    *_against("burst: create → first JobSet", _EQUAL, 1.4, 0.75),
    *_against("last JobSet done → job finished", _TRIVIAL, 0.5, 2.5),
    *_against("last JobSet done → job finished", _EQUAL, 0.5, 2.5),
    Target(name="operator's CPU to the first JobSet, ms per job", aim=6),
    Target(name="API server's CPU to the first JobSet, ms per job", aim=14),
    Target(name="idle: CPU, % of a core", aim=10),
    Target(name="idle: API requests per s", aim=5),
    Target(name="idle: store requests per s", aim=50),
    Target(name="storm: all next JobSets, s", aim=33),
    Target(name="storm: all next JobSets against the backlog", aim=1.3),
    Target(name="storm: jobs lost, doubled or wrongly charged", aim=0),
    Target(name="storm: reads per restart", aim=5),
    Target(name="faulty: rate of the others against none", aim=0.9, at_least=True),
    Target(name="faulty: p99 of the others against none", aim=1.1),
    Target(name="faulty: faults that the status does not show", aim=0),
    Target(name="50 in flight: JobSet finished → status, p50, ms", aim=42),
    Target(name="50 in flight: JobSet finished → next JobSet, p50, ms", aim=22),
    Target(name="soak: jobs lost, doubled or stuck", aim=0),
)


def targets(present: Sequence[int]) -> Sequence[Target]:
    """Returns all targets. ``present``: the numbers of jobs beside which a burst is measured."""
    beside = (
        target
        for count in present
        for target in (
            Target(name=f"{count:,} present: rate of the burst against none", aim=0.8, at_least=True),
            Target(name=f"{count:,} present: resident, MiB", aim=256),
            Target(name=f"{count:,} present: peak, MiB", aim=320),
            Target(name=f"{count:,} present: start → first decision, s", aim=60),
        )
    )
    return (*_TARGETS, *beside)


def missed(figures: Mapping[str, float], wanted: Sequence[Target]) -> bool:
    """Prints the figures beside their aims. Whether one misses its aim by more than a third.

    Raises ValueError for a figure without an aim.
    """
    if unknown := figures.keys() - {target.name for target in wanted}:
        raise ValueError(f"no aim for {sorted(unknown)}")
    measured = [(target, figures[target.name]) for target in wanted if target.name in figures]
    print("\n| figure | aim | measured | |\n|---|---|---|---|")
    for target, value in measured:
        result = "met" if target.met(value) else "near" if target.met(value, TOLERANCE) else "missed"
        print(
            f"| {target.name} | {'≥' if target.at_least else '≤'} {target.aim:g} | {value:.3g} | {result} |"
        )
    return any(not target.met(value, TOLERANCE) for target, value in measured)
