"""The CustomResourceDefinitions, assembled from the models."""

from functools import cache
from typing import Any

from finetune_operator.api.common import GROUP, VERSION, ApiModel
from finetune_operator.api.job import FineTuneJob
from finetune_operator.api.profile import FineTuneProfile
from tools.structural_schema import RULES_KEY, Schema, field_descriptions, rule_documents, structural_schema

#: kstatus reads observedGeneration first, so that no tool mistakes an unprocessed object for a finished one.
UNSEEN: dict[str, Any] = {"observedGeneration": -1}


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if wide else {})}


def _condition(kind: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].status'


_AGE = _column("Age", ".metadata.creationTimestamp", "date")
_JOB_COLUMNS = [
    _column("Phase", ".status.phase"),
    _column("Stage", ".status.stage"),
    _column("Step", ".status.progress.stepText"),
    _column("Loss", '.status.progress.metrics[?(@.name=="loss")].value'),
    _column("ETA", ".status.progress.etaText"),
    _column("Attempts", ".status.attempts.total", "integer"),
    _AGE,
    _column("Model", ".status.resolved.model.source", wide=True),
    _column("TPU", ".status.resolved.resources.tpu", wide=True),
    _column("Cost", ".status.cost.amount", wide=True),
    _column("Gate", _condition("GatePassed"), wide=True),
    _column("Curve", ".status.progress.curve.sparkline", wide=True),
]
_PROFILE_COLUMNS = [
    _column("Display Name", ".spec.displayName"),
    _column("Valid", _condition("Valid")),
    _column("Used By", ".status.usedBy", "integer"),
    _AGE,
    _column("Team", ".spec.owner.team", wide=True),
    _column("Flavors", ".spec.flavors[*].name", wide=True),
]


@cache
def job_crd() -> dict[str, Any]:
    """Returns the CRD of FineTuneJob. The result is shared: do not change it."""
    root = _root(FineTuneJob)
    for name in ("suspend", "cancel", "planOnly"):
        root["properties"]["spec"]["properties"][name]["default"] = False
    return _crd(
        root,
        kind="FineTuneJob",
        plural="finetunejobs",
        short_names=["ftj"],
        scope="Namespaced",
        columns=_JOB_COLUMNS,
    )


@cache
def profile_crd() -> dict[str, Any]:
    """Returns the CRD of FineTuneProfile. The result is shared: do not change it."""
    return _crd(
        _root(FineTuneProfile),
        kind="FineTuneProfile",
        plural="finetuneprofiles",
        short_names=["ftp"],
        scope="Cluster",
        columns=_PROFILE_COLUMNS,
    )


def root_schema(crd: dict[str, Any]) -> Schema:
    """Returns the schema of the whole object in one of this API's CRDs."""
    schema: Schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _root(model: type[ApiModel]) -> Schema:
    """Returns the root schema: spec and status from the models; the API server owns apiVersion, kind and metadata.

    The operator alone writes a status, and as a whole, so field ownership is tracked for the whole: managedFields are
    a seventh in size, and a status update takes a third less of the API server's CPU (docs/benchmarks.md).
    """
    spec, status = (_with_description(model, name) for name in ("spec", "status"))
    status["default"] = dict(UNSEEN)
    status["x-kubernetes-map-type"] = "atomic"
    root: Schema = {
        "description": " ".join((model.__doc__ or "").split()),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": "Version of this object's schema.", "type": "string"},
            "kind": {"description": "Kind of this object.", "type": "string"},
            # declared only for the rules on the name; the rest of metadata stays open
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": spec,
            "status": status,
        },
    }
    if model.rules:
        root[RULES_KEY] = rule_documents(model.rules)
    return root


def _with_description(model: type[ApiModel], name: str) -> Schema:
    field = model.model_fields[name]
    annotation = field.annotation
    inner = annotation if isinstance(annotation, type) else annotation.__args__[0]  # type: ignore[union-attr]
    return {**structural_schema(inner), "description": field_descriptions(model)[name]}


def _crd(
    root: Schema,
    *,
    kind: str,
    plural: str,
    short_names: list[str],
    scope: str,
    columns: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": short_names,
                "categories": ["tuning"],
            },
            "scope": scope,
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": root},
                }
            ],
        },
    }
