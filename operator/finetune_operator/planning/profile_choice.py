"""The choice of a job's profile: the one that it names, or else one that serves its namespace."""

from collections.abc import Sequence

from finetune_operator.api import DEFAULT_PROFILE_ANNOTATION, Reason
from finetune_operator.api.profile_policy import ConstraintMode
from finetune_operator.objects import Object
from finetune_operator.planning.defaults import CONSTRAINT_MODE
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.merge import lookup
from finetune_operator.planning.policy.job_checks import serves_namespace


def choose_profile(job: Object, profiles: Sequence[Object]) -> Object:
    """Returns the profile that the job names, or else its namespace's default one. Raises Refused.

    A job that has lost its plan keeps the profile that its status names: another one may have become the default since.
    Whether the profile still serves the job's namespace is not checked.
    """
    wanted = lookup(job["spec"], "profileRef.name")
    if wanted is None:
        admitted = lookup(job, "status.resolved.profile.name")
        own = next((each for each in profiles if _name(each) == admitted), None)
        return own or default_profile(job["metadata"].get("namespace"), profiles)
    found = next((each for each in profiles if _name(each) == wanted), None)
    if found is None:
        raise Refused(
            Reason.PROFILE_NOT_FOUND,
            f'spec.profileRef: there is no FineTuneProfile "{wanted}". Existing: {_names(profiles)}. '
            "The job continues when it is created.",
        )
    return found


def default_profile(namespace: str | None, profiles: Sequence[Object]) -> Object:
    """Returns the profile of the namespace's jobs that name none. Raises Refused.

    Of the profiles that serve the namespace it is the one marked as default or, if none is, the only one. Profiles that
    do not serve it do not count. ``namespace``: None if the manifest leaves it to kubectl.
    """
    serving = [each for each in profiles if serves(each, namespace or "default")]
    marked = [each for each in serving if _is_marked(each)]
    candidates = marked or serving
    if len(candidates) == 1:
        return candidates[0]
    where = namespace or "default, since metadata.namespace is not set"
    if not candidates:
        fix = f"add {namespace} to spec.namespaces of one" if namespace else "set metadata.namespace"
        raise Refused(
            Reason.NO_DEFAULT_PROFILE,
            f"spec.profileRef is left out and no FineTuneProfile serves namespace {where}: {fix}. "
            f"Existing: {_names(profiles)}.",
        )
    names = _names(candidates)
    fix = "Set spec.profileRef.name, for which an existing job must be created again, or"
    if marked:
        raise Refused(
            Reason.AMBIGUOUS_DEFAULT_PROFILE,
            f"spec.profileRef is left out, and {len(marked)} FineTuneProfiles that serve namespace {where} are marked "
            f"as default: {names}. {fix} remove {DEFAULT_PROFILE_ANNOTATION} from all but one.",
        )
    raise Refused(
        Reason.NO_DEFAULT_PROFILE,
        f"spec.profileRef is left out, {len(serving)} FineTuneProfiles serve namespace {where} ({names}), and none of "
        f'them is marked as default. {fix} annotate one with {DEFAULT_PROFILE_ANNOTATION}: "true".',
    )


def serves(profile: Object, namespace: str) -> bool:
    """Whether jobs of the namespace may use the profile."""
    strict = (lookup(profile, "spec.constraints.mode") or CONSTRAINT_MODE) == ConstraintMode.STRICT
    return serves_namespace(lookup(profile, "spec.namespaces") or (), namespace, strict=strict)


def _is_marked(profile: Object) -> bool:
    annotations = profile["metadata"].get("annotations") or {}
    return bool(annotations.get(DEFAULT_PROFILE_ANNOTATION) == "true")


def _name(profile: Object) -> str:
    return str(profile["metadata"]["name"])


def _names(profiles: Sequence[Object]) -> str:
    return ", ".join(sorted(map(_name, profiles))) or "none"
