"""The ConfigMap with health checks and actions for Argo CD, from the scripts in ``examples/argo-cd``."""

from pathlib import Path

import yaml

from finetune_operator.api.common import GROUP

#: In the order in which Argo CD shows them.
_ACTIONS = ("suspend", "resume", "retry", "cancel")
_PREFIX = "resource.customizations"


class _Dumper(yaml.SafeDumper):
    """Writes scripts as blocks, so that they can be read."""


def _string(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _string)


def argo_cd_config(scripts: Path) -> str:
    """Returns the part of Argo CD's ConfigMap ``argocd-cm`` that is about this project's kinds, as YAML.

    ``scripts``: the folder with ``<group>/<kind>/health.lua`` and ``actions/``, laid out as in Argo CD's repository.
    """
    job, profile = (scripts / GROUP / kind for kind in ("FineTuneJob", "FineTuneProfile"))
    actions = {
        "discovery.lua": _text(job / "actions" / "discovery.lua"),
        "definitions": [
            {"name": name, "action.lua": _text(job / "actions" / name / "action.lua")} for name in _ACTIONS
        ],
    }
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "argocd-cm", "labels": {"app.kubernetes.io/part-of": "argocd"}},
        "data": {
            f"{_PREFIX}.health.{GROUP}_{job.name}": _text(job / "health.lua"),
            f"{_PREFIX}.health.{GROUP}_{profile.name}": _text(profile / "health.lua"),
            f"{_PREFIX}.actions.{GROUP}_{job.name}": _yaml(actions),
        },
    }
    return _yaml(config)


def _yaml(document: object) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
