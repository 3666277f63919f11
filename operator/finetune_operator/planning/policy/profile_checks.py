"""Checks of a profile itself: entries that cannot have an effect, and remarks on those that may not be meant."""

import difflib
from collections.abc import Iterator, Sequence

from finetune_contract.engine import FaultKind, key_fault
from finetune_operator.api import (
    FineTuneJobSpec,
    FineTuneProfileSpec,
    ProfileDefaults,
    Reason,
    field_paths,
    number_paths,
)
from finetune_operator.api.profile_policy import ConstraintMode
from finetune_operator.catalog import CatalogError, shape_by_topology
from finetune_operator.objects import Object
from finetune_operator.planning.defaulted import DefaultedProfileSpec, profile_spec
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.policy.limits import LIMITED, bounds_of
from finetune_operator.planning.policy.locations import ledger_faults, storage_faults
from finetune_operator.planning.policy.pod_settings import pod_faults
from finetune_operator.planning.slices.pathways import pathways_faults

#: Similarity (difflib's ratio) from which a path counts as a typo of a known one.
_ALIKE = 0.8
#: First path segments of hub entries for reading, which cannot be the names of owners on the hub.
_HUB_KINDS = ("models", "datasets")
_NO_LEDGER = (
    "spec.constraints.chipHoursPerMonth: the operator keeps no ledger to count by. Set ledger.uri of the chart, or "
    "remove the limit."
)
#: Prefixes of libtpu's own flags.
_LIBTPUS = ("--xla_tpu", "--xla_sc")
#: Number of names in a repository id: the owner's and the repository's.
_REPOSITORY_NAMES = 2


def check_profile(name: str, profile: DefaultedProfileSpec) -> None:
    """Raises Refused if a profile has an unknown path, key or shape, which would otherwise silently enforce nothing."""
    wrong = [
        *_unknown_paths(profile),
        *_unknown_keys(profile),
        *_unknown_shapes(profile),
        *_idle_entries(profile),
        *_empty_ranges(profile),
        *storage_faults(profile.storage),
        *pathways_faults(profile),
        *pod_faults(profile.pod),
    ]
    if wrong:
        raise Refused(Reason.PROFILE_INVALID, f'profile "{name}": {" ".join(wrong)}')


def refuse_later_fields(name: str, spec: FineTuneProfileSpec) -> None:
    """Raises Refused, naming every field that the API accepts and this version does not support."""
    later = {"storage.optimizerStateTTLSeconds": spec.storage.optimizer_state_ttl_seconds}
    found = [f"spec.{path} = {value} (remove it)" for path, value in later.items() if value is not None]
    if found:
        raise Refused(
            Reason.NOT_YET_SUPPORTED,
            f'profile "{name}": this version of the operator does not support yet: {"; ".join(found)}.',
        )


def check_ledger(name: str, profile: DefaultedProfileSpec, ledger: str | None) -> None:
    """Raises Refused if tenants of the profile could write the operator's ledger, or if the profile needs one and there
    is none."""
    if ledger is None and profile.constraints.chip_hours_per_month is None:
        return
    wrong = [_NO_LEDGER] if ledger is None else list(ledger_faults(profile.storage, ledger))
    if wrong:
        raise Refused(Reason.PROFILE_INVALID, f'profile "{name}": {" ".join(wrong)}')


def profile_remarks(profile: Object) -> Iterator[str]:
    """Yields remarks on parts of a valid profile's spec that may not have the intended meaning."""
    spec = profile_spec("", profile)
    if not spec.namespaces and spec.constraints.mode is not ConstraintMode.OPEN:
        yield "spec.namespaces lists none, so no job can run under it: list namespaces, or *."
    yield from image_remarks(spec)
    for index, entry in enumerate(spec.constraints.uris.read or ()):
        if entry.startswith("gs://") and not set(entry.removeprefix("gs://")) & set("/*"):
            yield (
                f"spec.constraints.uris.read[{index}]: {entry} covers a folder that is the whole bucket, and no file "
                f"or folder in it: {entry}/* does."
            )
    for variable in spec.pod.env or ():
        if variable.name == "JAX_COMPILATION_CACHE_DIR":
            yield (
                "spec.pod.env: JAX_COMPILATION_CACHE_DIR takes the place of each namespace's own folder of compiled "
                "programs, so any client that may write there runs code in every job of the profile: remove it."
            )
    for index, flavor in enumerate(spec.flavors):
        libtpus = [each for each in flavor.xla_flags or () if each.startswith(_LIBTPUS)]
        if libtpus:
            yield f"spec.flavors[{index}].xlaFlags: {libtpus[0]} is a flag of libtpu's: move it to libtpuInitArgs."


def image_remarks(profile: DefaultedProfileSpec) -> Iterator[str]:
    """Yields a remark for each image of the trainer that is not named by a digest. On a local cluster none is."""
    for field, image in (("trainer", profile.images.trainer), ("cpu", profile.images.cpu)):
        if image is not None and "@sha256:" not in image and not image.startswith("localhost/"):
            yield (
                f"spec.images.{field}: {image} names no digest, so two stages of one job may run different images: "
                "append @sha256:…, as the registry shows it."
            )


def _empty_ranges(profile: DefaultedProfileSpec) -> Iterator[str]:
    for index, bound in enumerate(bounds_of(profile.constraints)):
        if bound.least is not None and bound.most is not None and bound.least > bound.most:
            yield (
                f"spec.constraints.limits[{index}]: no value of {bound.path} is at least {bound.least} and at most "
                f"{bound.most}: correct min or max."
            )


def _unknown_paths(profile: DefaultedProfileSpec) -> Iterator[str]:
    locked = profile.constraints.locked or ()
    limited = [limit.path for limit in profile.constraints.limits or ()]
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


def _unknown_keys(profile: DefaultedProfileSpec) -> Iterator[str]:
    """Yields keys that jobs cannot override. A profile can only narrow the set of MaxText settings, not widen it."""
    for index, key in enumerate(profile.constraints.engine_overrides.allow or ()):
        if fault := key_fault(key):
            fix = fault.fix if fault.kind is FaultKind.UNKNOWN else "Remove it: a profile cannot open it."
            yield f"spec.constraints.engineOverrides.allow[{index}]: {key}: {fault.what}. {fix}"


def _unknown_shapes(profile: DefaultedProfileSpec) -> Iterator[str]:
    """Yields shapes that do not exist: such a slice would silently never be chosen."""
    for index, flavor in enumerate(profile.flavors):
        for topology in flavor.topologies:
            try:
                shape_by_topology(flavor.accelerator, topology, chips_per_host=flavor.chips_per_host)
            except CatalogError as error:
                # Without chipsPerHost, both machine types may match; the job chooses one.
                if not error.ambiguous:
                    yield f"spec.flavors[{index}]: {error}"


def _idle_entries(profile: DefaultedProfileSpec) -> Iterator[str]:
    """Yields entries that cover nothing, whatever a job names."""
    lists = {
        "constraints.uris.read": profile.constraints.uris.read,
        "constraints.uris.write": profile.constraints.uris.write,
        "models.allow": profile.models.allow,
    }
    for path, entries in lists.items():
        for index, entry in enumerate(entries or ()):
            where = f"spec.{path}[{index}]: {entry}"
            if path == "models.allow" and entry.startswith("hf://"):
                repository = _open_ended(entry.removeprefix("hf://").removeprefix("models/"))
                yield f"{where} covers nothing, as a repository is listed here by its name alone: use {repository}."
            elif path == "constraints.uris.write" and (named := _written_repository(entry)):
                yield f"{where} covers nothing, as exports go to hf://<owner>/<name>: use {named}."
            elif entry.startswith("file://") and not profile.storage.artifacts.startswith("file://"):
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
