"""Rules of the platform team for jobs. A refusal names the profile and the rule; admission appends whom to contact."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from finetune_operator.api import FineTuneJob, Model, Reason
from finetune_operator.api.common import HubModelRef
from finetune_operator.api.data import DatasetSource, HubDatasetRef
from finetune_operator.objects import Object
from finetune_operator.planning.defaulted import DefaultedJobSpec, DefaultedProfileSpec
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.merge import lookup
from finetune_operator.planning.policy.locations import (
    Location,
    ProfileFolders,
    covers,
    location_problem,
    run_folder_problem,
)
from finetune_operator.planning.queueing import forbidden_labels

#: Similarity (difflib's ratio) from which one word counts as a typo of another; below it, a suggestion would mislead.
_ALIKE = 0.8
_HUB_MODELS = "hf://models/"
_MODEL = "spec.model.huggingFace.repo"


def policy_problems(
    job: FineTuneJob,
    name: str,
    profile: DefaultedProfileSpec,
    spec: DefaultedJobSpec,
    *,
    merged: Object,
    base: Object,
) -> list[str]:
    """Returns the rules that the job violates, except limits. Raises Refused if the profile excludes its namespace.

    Args:
        job: the FineTuneJob.
        name: the profile's name.
        profile: the profile's spec.
        spec: the job's spec over all defaults.
        merged: the same in JSON.
        base: the defaults only, in JSON, which are the required values of locked paths.
    """
    _check_namespace(name, profile, job.metadata.namespace)
    storage = ProfileFolders.of(profile.storage, job.metadata.namespace or "default")
    return [
        *_models(profile, spec.model, lookup(merged, "model.fromJob.base")),
        *_locked(profile, merged, base),
        *_renewal(profile, merged, base),
        *_overrides(profile, job.spec.engine_overrides or {}),
        *forbidden_labels(job.metadata.labels, profile.queue),
        *filter(None, _places(profile, spec, storage)),
    ]


def _renewal(profile: DefaultedProfileSpec, merged: Object, base: Object) -> Iterator[str]:
    """Yields a renewal of the job's own of a budget that the profile limits: the trainer's records would renew it."""
    path = "recovery.maxInfrastructureRetries"
    limited = any(bound.path == path and bound.max is not None for bound in profile.constraints.limits or ())
    if limited and lookup(merged, "recovery.renewedBy") != lookup(base, "recovery.renewedBy"):
        yield f"spec.recovery.renewedBy would renew {path}, which constraints.limits bounds: remove it"


def refused_by(name: str, problems: Iterable[str]) -> Refused:
    """Returns the refusal of a job that violates rules of the profile ``name``."""
    return Refused(Reason.POLICY_VIOLATION, f'profile "{name}": {"; ".join(problems)}.')


def serves_namespace(listed: Sequence[str], namespace: str, *, strict: bool) -> bool:
    """Whether a profile that lists these namespaces serves ``namespace``; ``strict``: of constraints.mode."""
    return namespace in listed or "*" in listed or not (listed or strict)


def _check_namespace(name: str, profile: DefaultedProfileSpec, namespace: str | None) -> None:
    """Raises Refused if the profile does not serve ``namespace``; None if the manifest leaves it to kubectl."""
    namespaces = profile.namespaces or ()
    if not serves_namespace(namespaces, namespace or "default", strict=profile.constraints.strict):
        other = (
            f'not {namespace}: to allow it, add "{namespace}" to spec.namespaces of the profile.'
            if namespace
            else "and metadata.namespace is not set, which here means default: set it."
        )
        raise Refused(Reason.PROFILE_NOT_ALLOWED, f'profile "{name}" serves {_served(namespaces)}, {other}')


def _served(namespaces: Sequence[str]) -> str:
    return (
        f"the namespaces {', '.join(namespaces)}"
        if namespaces
        else "the namespaces that it lists, and lists none"
    )


def _models(profile: DefaultedProfileSpec, model: Model, base: str | None) -> Iterator[str]:
    """Yields the violation of ``models.allow``. A tuned model is subject to the rules of its base model ``base``."""
    allowed = profile.models.allow
    if not allowed:
        return
    requested = base or _address(model)
    if not any(covers(pattern, requested) for pattern in allowed):
        # Whether a folder may be read at all is subject to another rule.
        entry = (
            ""
            if "://" in requested
            else f'; to allow this one, add "{requested}" to spec.models.allow of the profile'
        )
        meant = _meant_model(requested, allowed)
        yield (
            f"models.allow is {', '.join(allowed)}, which does not cover spec.model {requested}: "
            f"{f'did you mean {meant}? Else ' if meant else ''}use a model that it covers{entry}"
        )


def _meant_model(requested: str, allowed: Sequence[str]) -> str | None:
    """Returns the repository for which ``requested`` is probably a typo, if ``allowed`` covers one; else None."""
    owner, _, name = requested.rpartition("/")
    owners = difflib.get_close_matches(owner, {each.partition("/")[0] for each in allowed}, cutoff=_ALIKE)
    candidates = [f"{each}/{name}" for each in owners]
    candidates += difflib.get_close_matches(
        requested, [each for each in allowed if "*" not in each], cutoff=_ALIKE
    )
    return next((each for each in candidates if any(covers(pattern, each) for pattern in allowed)), None)


def _address(model: Model) -> str:
    """Returns the repository or the folder of a model."""
    if model.hugging_face:
        return model.hugging_face.repo
    return (model.orbax.uri if model.orbax else model.uri or "").rstrip("/")


def _locked(profile: DefaultedProfileSpec, merged: Object, base: Object) -> Iterator[str]:
    """Yields locked paths that differ. Compares merged values: another member of a union removes the locked one."""
    for path in profile.constraints.locked or ():
        requested, fixed = lookup(merged, path), lookup(base, path)
        if requested != fixed:
            actual = f"is {requested}" if requested is not None else "is left out"
            required = f"the profile's {fixed}" if fixed is not None else "left out"
            yield f"constraints.locked: spec.{path} {actual}, it must be {required}"


def _overrides(profile: DefaultedProfileSpec, overrides: Mapping[str, str]) -> Iterator[str]:
    """Yields overrides that the profile does not allow; ``check_job`` checks them against the engine itself."""
    allowed = profile.constraints.engine_overrides.allow
    if allowed is None:
        return
    listed = ", ".join(allowed) or "none"
    for key in sorted(overrides.keys() - set(allowed)):
        yield f"constraints.engineOverrides.allow is {listed}, which does not cover spec.engineOverrides.{key}"


def _places(
    profile: DefaultedProfileSpec, spec: DefaultedJobSpec, storage: ProfileFolders
) -> Iterator[str | None]:
    uris, strict = profile.constraints.uris, profile.constraints.strict
    models = [f"{_HUB_MODELS}{each}" for each in profile.models.allow or ()]
    for place in _read(spec):
        of_models = bool(models) and place.uri.startswith(_HUB_MODELS)
        if of_models and (place.path == _MODEL or any(covers(each, place.uri) for each in models)):
            # Models in models.allow need no second entry, and that rule alone applies to the model itself.
            continue
        yield location_problem(place, storage, "read", uris.read, strict=strict or of_models)
    for place in _written(spec):
        yield location_problem(place, storage, "write", uris.write, strict=strict)
    if spec.resume_from:
        folder = spec.resume_from.run_folder.rstrip("/")
        yield run_folder_problem("spec.resumeFrom.runFolder", folder, storage, uris.write or ())


def _read(spec: DefaultedJobSpec) -> Iterator[Location]:
    model, tokenizer = spec.model, spec.model.tokenizer
    if model.uri:
        yield Location(path="spec.model.fromJob" if model.from_job else "spec.model.uri", uri=model.uri)
    if model.orbax:
        yield Location(path="spec.model.orbax.uri", uri=model.orbax.uri)
    yield from _of_hub("spec.model", model.hugging_face, _HUB_MODELS)
    if tokenizer and tokenizer.uri:
        yield Location(path="spec.model.tokenizer.uri", uri=tokenizer.uri)
    yield from _of_hub("spec.model.tokenizer", tokenizer.hugging_face if tokenizer else None, _HUB_MODELS)
    yield from _rows("spec.datasets.train", spec.datasets.train)
    yield from _rows("spec.datasets.validation", spec.datasets.validation)
    yield from _rows("spec.evaluation.datasets", spec.evaluation.datasets)
    for index, benchmark in enumerate(spec.evaluation.benchmarks or ()):
        path = f"spec.evaluation.benchmarks[{index}]"
        if benchmark.uri:
            yield Location(path=f"{path}.uri", uri=benchmark.uri)
        else:
            # Only the evaluation harness knows which dataset a task reads.
            yield Location(path=f"{path}.name", uri=f"hf://benchmarks/{benchmark.name}")


def _rows(path: str, sources: Sequence[DatasetSource] | None) -> Iterator[Location]:
    for index, source in enumerate(sources or ()):
        if source.uri:
            yield Location(path=f"{path}[{index}].uri", uri=source.uri, folder=False)
        yield from _of_hub(f"{path}[{index}]", source.hugging_face, "hf://datasets/")


def _of_hub(path: str, reference: HubModelRef | HubDatasetRef | None, prefix: str) -> Iterator[Location]:
    if reference:
        yield Location(path=f"{path}.huggingFace.repo", uri=f"{prefix}{reference.repo}")


def _written(spec: DefaultedJobSpec) -> Iterator[Location]:
    for index, destination in enumerate(spec.export.destinations):
        path = f"spec.export.destinations[{index}]"
        if destination.uri:
            yield Location(path=f"{path}.uri", uri=destination.uri)
        elif hub := destination.hugging_face_hub:
            yield Location(path=f"{path}.huggingFaceHub.repo", uri=f"hf://{hub.repo}")
