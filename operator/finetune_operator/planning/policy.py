"""Rules of the platform team. A refusal names the profile and the rule; admission appends whom to contact."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from finetune_contract.engine import FaultKind, key_fault
from finetune_operator.api import (
    FineTuneJobSpec,
    ProfileDefaults,
    Reason,
    field_paths,
    number_paths,
)
from finetune_operator.catalog import CatalogError, shape_by_topology
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.limits import LIMITED, bounds_of
from finetune_operator.planning.locations import (
    Location,
    ProfileFolders,
    covers,
    location_problem,
    run_folder_problem,
    storage_faults,
)
from finetune_operator.planning.merge import lookup
from finetune_operator.planning.pathways import pathways_faults
from finetune_operator.planning.queueing import forbidden_labels
from finetune_operator.planning.resumption import resumed_folder

type Object = Mapping[str, Any]

#: Similarity (difflib's ratio) from which one word counts as a typo of another; below it, a suggestion would mislead.
_ALIKE = 0.8
_HUB_MODELS = "hf://models/"
_MODEL = "spec.model.huggingFace.repo"
#: First path segments of hub entries for reading, which cannot be the names of owners on the hub.
_HUB_KINDS = ("models", "datasets")
#: Prefixes of libtpu's own flags.
_LIBTPUS = ("--xla_tpu", "--xla_sc")
#: Number of names in a repository id: the owner's and the repository's.
_REPOSITORY_NAMES = 2


def check_profile(name: str, profile: Object) -> None:
    """Raises Refused if a profile has an unknown path, key or shape, which would otherwise silently enforce nothing."""
    wrong = [
        *_unknown_paths(profile),
        *_unknown_keys(profile),
        *_unknown_shapes(profile),
        *_idle_entries(profile),
        *_empty_ranges(profile),
        *storage_faults(profile),
        *pathways_faults(profile),
    ]
    if wrong:
        raise Refused(Reason.PROFILE_INVALID, f'profile "{name}": {" ".join(wrong)}')


def profile_remarks(profile: Object) -> Iterator[str]:
    """Yields remarks on parts of a profile's spec that are valid, but may not have the intended meaning."""
    if not profile.get("namespaces") and _strict(with_mode(profile, "Strict")):
        yield "spec.namespaces lists none, so no job can run under it: list namespaces, or *."
    for index, entry in enumerate(profile.get("constraints", {}).get("uris", {}).get("read", ())):
        if entry.startswith("gs://") and not set(entry.removeprefix("gs://")) & set("/*"):
            yield (
                f"spec.constraints.uris.read[{index}]: {entry} covers a folder that is the whole bucket, and no file "
                f"or folder in it: {entry}/* does."
            )
    for variable in profile.get("pod", {}).get("env", ()):
        if variable["name"] == "JAX_COMPILATION_CACHE_DIR":
            yield (
                "spec.pod.env: JAX_COMPILATION_CACHE_DIR takes the place of each namespace's own folder of compiled "
                "programs, so whoever may write there runs code in every job of the profile: remove it."
            )
    for index, flavor in enumerate(profile.get("flavors", ())):
        libtpus = [each for each in flavor.get("xlaFlags", ()) if each.startswith(_LIBTPUS)]
        if libtpus:
            yield f"spec.flavors[{index}].xlaFlags: {libtpus[0]} is a flag of libtpu's: move it to libtpuInitArgs."


def _empty_ranges(profile: Object) -> Iterator[str]:
    for index, bound in enumerate(bounds_of(with_mode(profile, "Strict"))):
        if bound.least is not None and bound.most is not None and bound.least > bound.most:
            yield (
                f"spec.constraints.limits[{index}]: no value of {bound.path} is at least {bound.least} and at most "
                f"{bound.most}: correct min or max."
            )


def _unknown_paths(profile: Object) -> Iterator[str]:
    constraints = profile.get("constraints", {})
    locked = constraints.get("locked", ())
    limited = [limit["path"] for limit in constraints.get("limits", ())]
    numbers = number_paths(FineTuneJobSpec)
    yield from _unknown("limits[{}].path", limited, numbers, "no number of a job's spec")
    for index, path in enumerate(limited):
        if path in numbers - LIMITED:
            yield f"spec.constraints.limits[{index}].path: {path} cannot be limited: remove the limit."
    yield from _unknown("locked[{}]", locked, field_paths(ProfileDefaults), "no field that defaults can set")


def _unknown(place: str, paths: Sequence[str], known: frozenset[str], what: str) -> Iterator[str]:
    for index, path in enumerate(paths):
        if path not in known:
            yield f"spec.constraints.{place.format(index)}: {path} is {what}: {_legal(path, known)}"


def _legal(path: str, known: frozenset[str]) -> str:
    """Returns a hint: the closest known path, or else the paths of the same section, or else the sections."""
    if close := difflib.get_close_matches(path, sorted(known), n=1, cutoff=_ALIKE):
        return f"did you mean {close[0]}?"
    section = [each for each in known if each.partition(".")[0] == path.partition(".")[0]]
    return f"known are {', '.join(sorted(section or {each.partition('.')[0] for each in known}))}."


def _unknown_keys(profile: Object) -> Iterator[str]:
    """Yields keys that jobs cannot override. A profile can only narrow the set of MaxText settings, not widen it."""
    allowed = profile.get("constraints", {}).get("engineOverrides", {}).get("allow", ())
    for index, key in enumerate(allowed):
        if fault := key_fault(key):
            fix = fault.fix if fault.kind is FaultKind.UNKNOWN else "Remove it: a profile cannot open it."
            yield f"spec.constraints.engineOverrides.allow[{index}]: {key}: {fault.what}. {fix}"


def _unknown_shapes(profile: Object) -> Iterator[str]:
    """Yields shapes that do not exist: such a slice would silently never be chosen."""
    for index, flavor in enumerate(profile["flavors"]):
        for topology in flavor["topologies"]:
            try:
                shape_by_topology(flavor["accelerator"], topology, chips_per_host=flavor.get("chipsPerHost"))
            except CatalogError as error:
                # Without chipsPerHost, both machine types may match; the job chooses one.
                if not error.ambiguous:
                    yield f"spec.flavors[{index}]: {error}"


def _idle_entries(profile: Object) -> Iterator[str]:
    """Yields entries that cover nothing, whatever a job names."""
    uris = profile.get("constraints", {}).get("uris", {})
    lists = {
        "constraints.uris.read": uris.get("read", ()),
        "constraints.uris.write": uris.get("write", ()),
        "models.allow": profile.get("models", {}).get("allow", ()),
    }
    for path, entries in lists.items():
        for index, entry in enumerate(entries):
            where = f"spec.{path}[{index}]: {entry}"
            if path == "models.allow" and entry.startswith("hf://"):
                repository = _open_ended(entry.removeprefix("hf://").removeprefix("models/"))
                yield f"{where} covers nothing, as a repository is listed here by its name alone: use {repository}."
            elif path == "constraints.uris.write" and (named := _written_repository(entry)):
                yield f"{where} covers nothing, as exports go to hf://<owner>/<name>: use {named}."
            elif entry.startswith("file://") and not profile["storage"]["artifacts"].startswith("file://"):
                yield f"{where} covers nothing, as the profile keeps things in gs://: remove it."
            elif entry.endswith("/"):
                yield f"{where} covers nothing, as no place ends in a slash: use {_open_ended(entry)}."


def _written_repository(entry: str) -> str | None:
    """Returns a replacement for a hub entry other than ``hf://<owner>/<name>``; None if none is needed."""
    if not entry.startswith("hf://"):
        return None
    names = entry.removeprefix("hf://").split("/")
    typed = len(names) > 1 and names[0] in _HUB_KINDS
    if not typed and len(names) <= _REPOSITORY_NAMES:
        return None
    owner, *more = names[1:] if typed else names
    name = more[0] if len(more) == 1 else ""
    return "hf://*" if owner in {"", "*"} else f"hf://{owner}/{name or '*'}"


def _open_ended(entry: str) -> str:
    return f"{entry}*" if not entry or entry.endswith("/") else entry


def with_mode(profile: Object, mode: str) -> Object:
    """Returns ``profile`` with an explicit ``constraints.mode``: its own, or else ``mode``."""
    return {**profile, "constraints": {"mode": mode, **profile.get("constraints", {})}}


def policy_problems(job: Object, name: str, profile: Object, merged: Object, base: Object) -> list[str]:
    """Returns the rules that the job violates, except limits. Raises Refused if the profile excludes its namespace.

    Args:
        job: the FineTuneJob.
        name: the profile's name.
        profile: the profile's spec with an explicit mode (:func:`with_mode`).
        merged: the job's spec over all defaults.
        base: the defaults only, which are the required values of locked paths.
    """
    _check_namespace(name, profile, job["metadata"].get("namespace"))
    namespace = job["metadata"].get("namespace", "default")
    broken = [problem for rule in _RULES for problem in rule(job["spec"], profile, merged, base)]
    broken += forbidden_labels(job["metadata"], profile)
    return [*broken, *filter(None, _places(profile, merged, ProfileFolders.of(profile, namespace)))]


def refused_by(name: str, problems: Iterable[str]) -> Refused:
    """Returns the refusal of a job that violates rules of the profile ``name``."""
    return Refused(Reason.POLICY_VIOLATION, f'profile "{name}": {"; ".join(problems)}.')


def _check_namespace(name: str, profile: Object, namespace: str | None) -> None:
    """Raises Refused if the profile does not serve ``namespace``; None if the manifest leaves it to kubectl."""
    namespaces = profile.get("namespaces", ())
    listed = (namespace or "default") in namespaces or "*" in namespaces
    if not listed and (namespaces or _strict(profile)):
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


def _strict(profile: Object) -> bool:
    return bool(profile["constraints"]["mode"] == "Strict")


def _models(_spec: Object, profile: Object, merged: Object, _base: Object) -> Iterator[str]:
    allowed = profile.get("models", {}).get("allow")
    if not allowed:
        return
    model = merged["model"]
    # A tuned model is subject to the rules of its base model.
    base = model.get("fromJob", {}).get("base")
    asked = base or (model["huggingFace"]["repo"] if "huggingFace" in model else _folder_of(model))
    if not any(covers(pattern, asked) for pattern in allowed):
        # Whether a folder may be read at all is subject to another rule.
        entry = (
            ""
            if "://" in asked
            else f'; to allow this one, add "{asked}" to spec.models.allow of the profile'
        )
        meant = _meant_model(asked, allowed)
        yield (
            f"models.allow is {', '.join(allowed)}, which does not cover spec.model {asked}: "
            f"{f'did you mean {meant}? Else ' if meant else ''}use a model that it covers{entry}"
        )


def _meant_model(asked: str, allowed: Sequence[str]) -> str | None:
    """Returns the repository for which ``asked`` is probably a typo, if ``allowed`` covers one; else None."""
    owner, _, name = asked.rpartition("/")
    owners = difflib.get_close_matches(owner, {each.partition("/")[0] for each in allowed}, cutoff=_ALIKE)
    candidates = [f"{each}/{name}" for each in owners]
    candidates += difflib.get_close_matches(
        asked, [each for each in allowed if "*" not in each], cutoff=_ALIKE
    )
    return next((each for each in candidates if any(covers(pattern, each) for pattern in allowed)), None)


def _folder_of(model: Object) -> str:
    uri: str = model["orbax"]["uri"] if "orbax" in model else model["uri"]
    return uri.rstrip("/")


def _locked(_spec: Object, profile: Object, merged: Object, base: Object) -> Iterator[str]:
    """Yields locked paths that differ. Compares merged values: another member of a union removes the locked one."""
    for path in profile.get("constraints", {}).get("locked", ()):
        asked, fixed = lookup(merged, path), lookup(base, path)
        if asked != fixed:
            asks = f"is {asked}" if asked is not None else "is left out"
            said = f"the profile's {fixed}" if fixed is not None else "left out"
            yield f"constraints.locked: spec.{path} {asks}, it must be {said}"


def _overrides(spec: Object, profile: Object, _merged: Object, _base: Object) -> Iterator[str]:
    """Yields overrides that the profile does not allow; ``check_job`` checks them against the engine itself."""
    allowed = profile.get("constraints", {}).get("engineOverrides", {}).get("allow")
    if allowed is None:
        return
    listed = ", ".join(allowed) or "none"
    for key in sorted(set(spec.get("engineOverrides", {})) - set(allowed)):
        yield f"constraints.engineOverrides.allow is {listed}, which does not cover spec.engineOverrides.{key}"


def _places(profile: Object, merged: Object, storage: ProfileFolders) -> Iterator[str | None]:
    uris, strict = profile["constraints"].get("uris", {}), _strict(profile)
    models = [f"{_HUB_MODELS}{each}" for each in profile.get("models", {}).get("allow", ())]
    for place in _read(merged):
        of_models = bool(models) and place.uri.startswith(_HUB_MODELS)
        if of_models and (place.path == _MODEL or any(covers(each, place.uri) for each in models)):
            # Models in models.allow need no second entry, and that rule alone applies to the model itself.
            continue
        yield location_problem(place, storage, "read", uris.get("read"), strict=strict or of_models)
    for place in _written(merged):
        yield location_problem(place, storage, "write", uris.get("write"), strict=strict)
    if folder := resumed_folder(merged):
        yield run_folder_problem("spec.resumeFrom.runFolder", folder, storage, uris.get("write", ()))


def _read(merged: Object) -> Iterator[Location]:
    model, evaluation = merged["model"], merged["evaluation"]
    if "uri" in model:
        yield Location(
            path="spec.model.fromJob" if "fromJob" in model else "spec.model.uri", uri=model["uri"]
        )
    if "orbax" in model:
        yield Location(path="spec.model.orbax.uri", uri=model["orbax"]["uri"])
    yield from _of_hub("spec.model", model, _HUB_MODELS)
    tokenizer = model.get("tokenizer", {})
    if "uri" in tokenizer:
        yield Location(path="spec.model.tokenizer.uri", uri=tokenizer["uri"])
    yield from _of_hub("spec.model.tokenizer", tokenizer, _HUB_MODELS)
    yield from _rows("spec.datasets.train", merged["datasets"]["train"])
    yield from _rows("spec.datasets.validation", merged["datasets"].get("validation", ()))
    yield from _rows("spec.evaluation.datasets", evaluation.get("datasets", ()))
    for index, source in enumerate(evaluation.get("benchmarks", ())):
        path = f"spec.evaluation.benchmarks[{index}]"
        if "uri" in source:
            yield Location(path=f"{path}.uri", uri=source["uri"])
        else:
            # Only the evaluation harness knows which dataset a task reads.
            yield Location(path=f"{path}.name", uri=f"hf://benchmarks/{source['name']}")


def _rows(path: str, sources: Sequence[Object]) -> Iterator[Location]:
    for index, source in enumerate(sources):
        if "uri" in source:
            yield Location(path=f"{path}[{index}].uri", uri=source["uri"], folder=False)
        yield from _of_hub(f"{path}[{index}]", source, "hf://datasets/")


def _of_hub(path: str, source: Object, prefix: str) -> Iterator[Location]:
    if "huggingFace" in source:
        yield Location(path=f"{path}.huggingFace.repo", uri=f"{prefix}{source['huggingFace']['repo']}")


def _written(merged: Object) -> Iterator[Location]:
    for index, destination in enumerate(merged["export"].get("destinations", ())):
        path = f"spec.export.destinations[{index}]"
        if "uri" in destination:
            yield Location(path=f"{path}.uri", uri=destination["uri"])
        else:
            yield Location(
                path=f"{path}.huggingFaceHub.repo", uri=f"hf://{destination['huggingFaceHub']['repo']}"
            )


_RULES: tuple[Callable[[Object, Object, Object, Object], Iterator[str]], ...] = (
    _models,
    _locked,
    _overrides,
)
