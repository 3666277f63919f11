"""What the platform team allows. Every refusal names the profile, the rule and whom to ask."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any

from finetune_contract.engine import FaultKind, key_fault
from finetune_operator.api import (
    Defaults,
    FineTuneJobSpec,
    Reason,
    field_paths,
    number_paths,
)
from finetune_operator.catalog import CatalogError, shape_by_topology
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.merge import lookup
from finetune_operator.planning.pathways import pathways_faults
from finetune_operator.planning.queueing import forbidden_labels
from finetune_operator.planning.resumption import resumed_folder

type Object = Mapping[str, Any]

#: From here on two words are one of them mistyped (difflib's ratio); below it a suggestion would mislead.
_ALIKE = 0.8


def check_profile(name: str, profile: Object) -> None:
    """A mistyped path, key or shape in a profile must not silently enforce nothing. Raises Refused."""
    wrong = [
        *_unknown_paths(profile),
        *_unknown_keys(profile),
        *_unknown_shapes(profile),
        *pathways_faults(profile),
    ]
    if wrong:
        raise Refused(Reason.PROFILE_INVALID, f'profile "{name}": {" ".join(wrong)} {_ask(profile)}')


def _unknown_paths(profile: Object) -> Iterator[str]:
    constraints = profile.get("constraints", {})
    locked = constraints.get("locked", ())
    limited = [limit["path"] for limit in constraints.get("limits", ())]
    yield from _unknown(
        "limits[{}].path", limited, number_paths(FineTuneJobSpec), "no number of a job's spec"
    )
    yield from _unknown("locked[{}]", locked, field_paths(Defaults), "no field that defaults can set")


def _unknown(place: str, paths: Sequence[str], known: frozenset[str], what: str) -> Iterator[str]:
    for index, path in enumerate(paths):
        if path not in known:
            yield f"spec.constraints.{place.format(index)}: {path} is {what}: {_legal(path, known)}"


def _legal(path: str, known: frozenset[str]) -> str:
    """The one that was meant; else those of its section, or the sections."""
    if close := difflib.get_close_matches(path, sorted(known), n=1, cutoff=_ALIKE):
        return f"did you mean {close[0]}?"
    section = [each for each in known if each.partition(".")[0] == path.partition(".")[0]]
    return f"known are {', '.join(sorted(section or {each.partition('.')[0] for each in known}))}."


def _unknown_keys(profile: Object) -> Iterator[str]:
    """A profile narrows which settings of MaxText jobs may override; it opens nothing."""
    allowed = profile.get("constraints", {}).get("engineOverrides", {}).get("allow", ())
    for index, key in enumerate(allowed):
        if fault := key_fault(key):
            fix = fault.fix if fault.kind is FaultKind.UNKNOWN else "Remove it: a profile cannot open it."
            yield f"spec.constraints.engineOverrides.allow[{index}]: {key}: {fault.what}. {fix}"


def _unknown_shapes(profile: Object) -> Iterator[str]:
    """A slice that does not exist would never be chosen, without a word."""
    for index, flavor in enumerate(profile["flavors"]):
        for topology in flavor["topologies"]:
            try:
                shape_by_topology(flavor["accelerator"], topology, chips_per_host=flavor.get("chipsPerHost"))
            except CatalogError as error:
                # Without chipsPerHost both machines may serve; the job says which it wants.
                if not error.ambiguous:
                    yield f"spec.flavors[{index}]: {error}"


def check_policy(job: Object, name: str, profile: Object, merged: Object, base: Object) -> None:
    """Raise Refused when the job breaks a rule.

    Args:
        job: the FineTuneJob.
        name: the profile's name.
        profile: the profile's spec.
        merged: the job's spec over all defaults.
        base: the defaults alone: what locked paths must say.
    """
    namespace = job["metadata"].get("namespace", "default")
    namespaces = profile.get("namespaces", ())
    if namespaces and namespace not in namespaces:
        raise Refused(
            Reason.PROFILE_NOT_ALLOWED,
            f'profile "{name}" serves the namespaces {", ".join(namespaces)}, not {namespace}. {_ask(profile)}',
        )
    broken = [problem for rule in _RULES for problem in rule(job["spec"], profile, merged, base)]
    broken += forbidden_labels(job["metadata"], profile)
    broken += _foreign_run(merged, profile, namespace)
    if broken:
        raise Refused(Reason.POLICY_VIOLATION, f'profile "{name}": {"; ".join(broken)}. {_ask(profile)}')


def _ask(profile: Object) -> str:
    owner = profile.get("owner", {})
    contact = owner.get("contact") or owner.get("team")
    return f"Ask {contact}." if contact else "Ask the owner of the profile."


def _models(_spec: Object, profile: Object, merged: Object, _base: Object) -> Iterator[str]:
    allowed = profile.get("models", {}).get("allow")
    if not allowed:
        return
    model = merged["model"]
    # A tuned model is what it was made of.
    base = model.get("fromJob", {}).get("base")
    asked = base or (model["huggingFace"]["repo"] if "huggingFace" in model else _folder_of(model))
    if not any(fnmatchcase(asked, pattern) for pattern in allowed):
        yield f"models.allow is {', '.join(allowed)}, which does not cover spec.model {asked}"


def _folder_of(model: Object) -> str:
    uri: str = model["orbax"]["uri"] if "orbax" in model else model["uri"]
    return uri


def _limits(_spec: Object, profile: Object, merged: Object, _base: Object) -> Iterator[str]:
    for limit in profile.get("constraints", {}).get("limits", ()):
        value = lookup(merged, limit["path"])
        number = _decimal(value)
        if number is None:
            continue
        if "max" in limit and number > Decimal(limit["max"]):
            yield f"constraints.limits: spec.{limit['path']} is {value}, at most {limit['max']} is allowed"
        if "min" in limit and number < Decimal(limit["min"]):
            yield f"constraints.limits: spec.{limit['path']} is {value}, at least {limit['min']} is asked for"


def _decimal(value: Any) -> Decimal | None:
    if value is None or isinstance(value, bool | Mapping | list):
        return None
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def _locked(_spec: Object, profile: Object, merged: Object, base: Object) -> Iterator[str]:
    """Judged on the merged values: a job that sets another member of a union drops the one that is locked."""
    for path in profile.get("constraints", {}).get("locked", ()):
        asked, fixed = lookup(merged, path), lookup(base, path)
        if asked != fixed:
            asks = f"is {asked}" if asked is not None else "is left out"
            said = f"the profile's {fixed}" if fixed is not None else "left out"
            yield f"constraints.locked: spec.{path} {asks}, it must be {said}"


def _overrides(spec: Object, profile: Object, _merged: Object, _base: Object) -> Iterator[str]:
    """Which of the engine's settings may be overridden at all, and with which values, ``check_job`` has judged."""
    allowed = profile.get("constraints", {}).get("engineOverrides", {}).get("allow")
    if allowed is None:
        return
    listed = ", ".join(allowed) or "none"
    for key in sorted(set(spec.get("engineOverrides", {})) - set(allowed)):
        yield f"constraints.engineOverrides.allow is {listed}, which does not cover spec.engineOverrides.{key}"


def _uris(_spec: Object, profile: Object, merged: Object, _base: Object) -> Iterator[str]:
    uris = profile.get("constraints", {}).get("uris", {})
    storage = profile["storage"]
    own = [f"{storage[name].rstrip('/')}/*" for name in ("artifacts", "cache") if name in storage]
    for rule, places in (("read", _read(merged)), ("write", _written(merged))):
        if rule not in uris:
            continue
        for path, uri in places:
            # fnmatch gives ".." no meaning, but a store does not either: object names are opaque.
            if not any(fnmatchcase(uri, pattern) for pattern in (*own, *uris[rule])):
                listed = ", ".join(uris[rule]) or "empty"
                yield f"constraints.uris.{rule} is {listed}, which does not cover {path} {uri}"


def _read(merged: Object) -> Iterator[tuple[str, str]]:
    model, datasets = merged["model"], merged["datasets"]
    if "uri" in model:
        yield "spec.model.fromJob" if "fromJob" in model else "spec.model.uri", model["uri"]
    if "orbax" in model:
        yield "spec.model.orbax.uri", model["orbax"]["uri"]
    if "uri" in model.get("tokenizer", {}):
        yield "spec.model.tokenizer.uri", model["tokenizer"]["uri"]
    for kind in ("train", "validation"):
        for index, source in enumerate(datasets.get(kind, ())):
            if "uri" in source:
                yield f"spec.datasets.{kind}[{index}].uri", source["uri"]
    for kind in ("datasets", "benchmarks"):
        for index, source in enumerate(merged["evaluation"].get(kind, ())):
            if "uri" in source:
                yield f"spec.evaluation.{kind}[{index}].uri", source["uri"]


def _written(merged: Object) -> Iterator[tuple[str, str]]:
    for index, destination in enumerate(merged["export"].get("destinations", ())):
        if "uri" in destination:
            yield f"spec.export.destinations[{index}].uri", destination["uri"]
        else:
            repo = destination["huggingFaceHub"]["repo"]
            yield f"spec.export.destinations[{index}].huggingFaceHub.repo", f"hf://{repo}"


def _foreign_run(merged: Object, profile: Object, namespace: str) -> Iterator[str]:
    """A run folder is written to, so it is the namespace's own, or one that the profile opens by name."""
    folder = resumed_folder(merged)
    own = f"{profile['storage']['artifacts'].rstrip('/')}/{namespace}/"
    opened = profile.get("constraints", {}).get("uris", {}).get("write", ())
    if folder and not folder.startswith(own) and not any(fnmatchcase(folder, each) for each in opened):
        yield (
            f"spec.resumeFrom.runFolder {folder} is neither below {own} nor covered by constraints.uris.write "
            f"({', '.join(opened) or 'empty'})"
        )


_RULES: tuple[Callable[[Object, Object, Object, Object], Iterator[str]], ...] = (
    _models,
    _limits,
    _locked,
    _overrides,
    _uris,
)
