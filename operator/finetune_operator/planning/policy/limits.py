"""Applies a profile's ``constraints.limits`` to the effective numbers of a job, wherever they come from.

Some numbers are known only after preflight has counted the rows or chosen a mesh: their limits are checked then, before
a slice is claimed.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from finetune_operator.api import FineTuneJobSpec, MethodType, exact, number_paths, options_of
from finetune_operator.api.method import member
from finetune_operator.api.profile_policy import Constraints
from finetune_operator.objects import Object
from finetune_operator.planning.merge import lookup
from finetune_operator.planning.slices.memory import chosen_mesh, place_name

if TYPE_CHECKING:
    from finetune_contract import PreflightOutcome
    from finetune_operator.planning.plan import Findings, Plan

type Number = int | float | Decimal

#: Value of a number that is not set and is therefore unlimited.
UNLIMITED = Decimal("Infinity")


class _Later(Exception):
    """Only preflight can determine the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedLimit:
    """One entry of ``constraints.limits``. None: not limited in that direction."""

    path: str
    least: Decimal | None
    most: Decimal | None


def bounds_of(constraints: Constraints) -> tuple[ResolvedLimit, ...]:
    """Returns the limits of a profile."""
    return tuple(
        ResolvedLimit(
            path=limit.path,
            least=None if limit.min is None else exact(limit.min),
            most=None if limit.max is None else exact(limit.max),
        )
        for limit in constraints.limits or ()
    )


def limit_problems(plan: "Plan", spec: Object) -> Iterator[str]:
    """Yields violated limits, as far as they can be checked before preflight. ``spec`` is the merged spec."""
    for bound in plan.bounds:
        try:
            value = _NUMBERS[bound.path](_Known(plan, spec))
        except _Later:
            if bound.path in _OF_ROWS and plan.data.check != "Full":
                yield (
                    f"constraints.limits: spec.{bound.path} is limited, and with spec.preflight.dataset: "
                    f"{plan.data.check} the rows are not counted: use Full"
                )
            continue
        written = lookup(spec, bound.path) is not None
        if not written and bound.most is not None and value == UNLIMITED > bound.most:
            yield (
                f"constraints.limits: spec.{bound.path} has no value, so it is unlimited: set it to at most "
                f"{bound.most}"
            )
            continue
        yield from _beyond(bound, value, "is {}" if written else "comes to {} by default or by other fields")


def written_problems(bounds: Iterable[ResolvedLimit], spec: Object) -> Iterator[str]:
    """Yields limits that values in the merged spec itself violate: all that can be checked without a plan."""
    for bound in bounds:
        value = lookup(spec, bound.path)
        if value is not None:
            yield from _beyond(bound, value, "is {}")


def found_problems(plan: "Plan", findings: "Findings") -> Iterator[str]:
    """Yields violated limits that could only be checked after preflight."""
    for bound in plan.bounds if findings.preflight else ():
        number = _NUMBERS[bound.path]
        try:
            number(_Known(plan))
        except _Later:
            value = number(_Known(plan, found=findings.preflight))
            yield from _beyond(bound, value, "comes to {} by what preflight found")


def _beyond(bound: ResolvedLimit, value: Number | None, saying: str) -> Iterator[str]:
    if value is None:
        return
    number = value if isinstance(value, Decimal) else exact(value)
    if bound.most is not None and number > bound.most:
        said = saying.format(_apart(number, bound.most))
        yield f"constraints.limits: spec.{bound.path} {said}, at most {bound.most} is allowed"
    if bound.least is not None and number < bound.least:
        said = saying.format(_apart(number, bound.least))
        yield f"constraints.limits: spec.{bound.path} {said}, at least {bound.least} is required"


def _apart(number: Decimal, bound: Decimal) -> str:
    """The number with ten digits, or with all where ten do not tell it apart from the bound."""
    if not number.is_finite():
        return "no limit"
    short = f"{float(number):.10g}"
    return str(number) if Decimal(short) == bound else short


# --- effective value of each number


@dataclass(frozen=True, slots=True)
class _Known:
    """What a number follows from."""

    plan: "Plan"
    spec: Object = field(default_factory=dict)
    """The merged spec."""
    found: "PreflightOutcome | None" = None


type _Resolve = Callable[[_Known], Number | None]
"""Returns the number; None if it does not apply to the job."""


def _attribute(plan: "Plan", path: str) -> Any:
    """Returns an attribute path of the plan; None if any attribute in it is None."""
    value: Any = plan
    for name in path.split("."):
        value = getattr(value, name) if value is not None else None
    return value


def _of(path: str) -> _Resolve:
    return lambda known: _attribute(known.plan, path)


def _or_unlimited(path: str) -> _Resolve:
    return lambda known: UNLIMITED if (value := _attribute(known.plan, path)) is None else value


def _of_method(method: MethodType, name: str) -> _Resolve:
    """Resolves an option of the plan's method; None if the job uses another method."""
    return lambda known: getattr(known.plan.method, name) if known.plan.method.type == method else None


def _written(path: str) -> _Resolve:
    """Resolves a value of the merged spec, for fields that change no plan."""
    return lambda known: lookup(known.spec, path)


def _steps(known: _Known) -> int:
    if known.plan.hyperparameters.steps is not None:
        return known.plan.hyperparameters.steps
    if known.found is None:
        raise _Later
    return known.found.steps


def _epochs(known: _Known) -> Number:
    numbers, found = known.plan.hyperparameters, known.found
    if numbers.steps is None:
        return numbers.epochs if numbers.epochs is not None else 1
    if found is None:
        raise _Later
    rows = [each.sequences if each.epoch_sequences is None else each.epoch_sequences for each in found.train]
    total = sum(each for each in rows if each is not None)
    if not total or None in rows:
        return UNLIMITED
    return Decimal(numbers.steps * numbers.global_batch_size) / total


def _warmup_steps(known: _Known) -> int:
    numbers, steps = known.plan.hyperparameters, _steps(known)
    if numbers.warmup_steps is not None:
        return min(numbers.warmup_steps, steps)
    return max(0, min(math.ceil(round((numbers.warmup_ratio or 0.0) * steps, 9)), steps - 1))


def _warmup_ratio(known: _Known) -> Number:
    numbers = known.plan.hyperparameters
    if numbers.warmup_ratio is not None:
        return numbers.warmup_ratio
    steps = _steps(known)
    return Decimal(min(numbers.warmup_steps or 0, steps)) / max(1, steps)


def _per_device(known: _Known) -> Number:
    numbers, devices = known.plan.hyperparameters, known.plan.mesh.devices
    return Decimal(numbers.global_batch_size) / (numbers.gradient_accumulation_steps * devices)


def _axis(name: str) -> _Resolve:
    """Resolves a mesh axis. Preflight may choose another mesh by compiling."""

    def resolve(known: _Known) -> Number:
        check, mesh, found = known.plan.memory, known.plan.mesh, known.found
        if check is not None and check.choose_parallelism:
            if found is None:
                raise _Later
            if found.memory and found.memory.mesh and found.memory.slice == place_name(check, mesh):
                mesh = chosen_mesh(mesh, found.memory.mesh)
        size: int = getattr(mesh, name)
        return size

    return resolve


#: Depend on the number of rows in the training data.
_OF_ROWS = ("hyperparameters.epochs",)
#: Beginnings of paths in a job's spec that the plan has under another name.
_SECTIONS = {
    "checkpointing.keep.": "checkpointing.keep_",
    "datasets.": "data.",
    "evaluation.generation.": "evaluation.",
    "preflight.smoke.": "smoke.",
    "resources.": "mesh.",
}
#: Numbers that are no amounts.
_NO_AMOUNTS = {"retry.generation", "model.fromJob.step"}


def _in_plan(path: str) -> _Resolve:
    """Resolves a number that the plan has under the name of the spec."""
    for section, attribute in _SECTIONS.items():
        if path.startswith(section):
            path = attribute + path.removeprefix(section)
    return _of(re.sub(r"(?=[A-Z])", "_", path).lower())


_NUMBERS: Mapping[str, _Resolve] = {
    **{path: _in_plan(path) for path in number_paths(FineTuneJobSpec) - _NO_AMOUNTS},
    **{
        f"method.{member(method)}.{info.alias}": _of_method(method, name)
        for method in MethodType
        for name, info in options_of(method).model_fields.items()
        if info.alias in number_paths(options_of(method))
    },
    "activeDeadlineSeconds": _or_unlimited("limits.active"),
    "budget.maxChipHours": _or_unlimited("budget.chip_hours.most"),
    "budget.maxCost": _or_unlimited("budget.cost.most"),
    "childTTLSecondsAfterFinished": _or_unlimited("limits.child_ttl"),
    "evaluation.maxExamples": _written("evaluation.maxExamples"),
    "hangPolicy.blindSeconds": _or_unlimited("limits.blind"),
    "hangPolicy.noStepSeconds": _of("limits.no_step"),
    "hangPolicy.refusedPodsSeconds": _of("limits.refused_pods"),
    # By default, CPU stages have a longer limit than Evaluate.
    "hangPolicy.stageSeconds": _of("limits.cpu_stage"),
    "hangPolicy.startupSeconds": _of("limits.startup"),
    "hyperparameters.epochs": _epochs,
    "hyperparameters.perDeviceBatchSize": _per_device,
    "hyperparameters.steps": _steps,
    "hyperparameters.warmupRatio": _warmup_ratio,
    "hyperparameters.warmupSteps": _warmup_steps,
    "preRunningDeadlineSeconds": _of("limits.pre_running"),
    "resources.parallelism.data": _axis("data"),
    "resources.parallelism.fsdp": _axis("fsdp"),
    "resources.parallelism.tensor": _axis("tensor"),
}
#: Paths that a limit may name.
LIMITED = frozenset(_NUMBERS)
