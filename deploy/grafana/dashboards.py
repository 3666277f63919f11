"""The dashboards as Grafana imports them."""

from collections.abc import Mapping
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.fleet import fleet
from deploy.grafana.job import job

FOLDER = Path(__file__).parent


def dashboards() -> Mapping[str, str]:
    """Name of the file in this folder -> its content."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    made = {"fleet.json": fleet().build(), "job.json": job().build()}
    for each in made.values():
        for number, panel in enumerate(each.panels or (), start=1):
            panel.id_val = number
    return {name: f"{encoder.encode(each)}\n" for name, each in made.items()}
