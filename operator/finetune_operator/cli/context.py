"""Finds the objects that checking a job requires among manifests.

These are its profile, the ConfigMap of its chat template, and the job that it starts from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from finetune_operator.cli.manifests import Object, of_kind
from finetune_operator.planning import Refused, choose_profile
from finetune_operator.planning.sections.chat_template import template_ref
from finetune_operator.planning.source_job import source_name
from finetune_operator.rendering.offline import offline_plan
from finetune_operator.rendering.offline_source import foreseen_source, unknown_source


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestContext:
    """The objects that checking a job requires besides its profile."""

    template: Object | None
    """The ConfigMap of the job's chat template. None if there is none."""
    source: Object | None
    """The job that this job starts from. None if it starts from none."""
    remark: str = ""
    """Why the parts that depend on that job's model are not checked. Empty if they are."""


def context_of(
    job: Object, profile: Object, objects: Sequence[Object], below: Sequence[str] = ()
) -> ManifestContext:
    """Finds a job's context among ``objects``. ``below`` names the jobs that start from this one."""
    template, name = template_of(job, objects), source_name(job["spec"])
    if name is None:
        return ManifestContext(template=template, source=None)
    source = next(
        (each for each in of_kind(objects, "FineTuneJob") if _id(each) == (_id(job)[0], name)), None
    )
    above = [*below, job["metadata"]["name"]]
    if source is None:
        why = "is not among the manifests"
    elif name in above:
        why = "starts from this job"
    else:
        try:
            its_profile = choose_profile(source, of_kind(objects, "FineTuneProfile"))
            given = context_of(source, its_profile, objects, above)
            plan = offline_plan(source, its_profile, given.template, given.source)
        except Refused as refused:
            why = f"is itself refused ({refused.reason})"
        else:
            if not given.remark:
                return ManifestContext(template=template, source=foreseen_source(plan))
            why = "starts from a job that is only partly known"
    return ManifestContext(
        template=template,
        source=unknown_source(job, profile),
        remark=f'spec.model.fromJob: FineTuneJob "{name}" {why}. Everything but its model was checked.',
    )


def _id(job: Object) -> tuple[str, str]:
    return job["metadata"].get("namespace") or "default", job["metadata"]["name"]


def template_of(job: Object, objects: Sequence[Object]) -> Object | None:
    """Returns the ConfigMap with the job's chat template; None if the job names none or it is not among the objects."""
    name = (template_ref(job["spec"]) or {}).get("name")
    maps = (item for item in objects if item.get("kind") == "ConfigMap")
    return next((item for item in maps if (item.get("metadata") or {}).get("name") == name), None)
