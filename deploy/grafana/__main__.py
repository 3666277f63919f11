"""Writes the dashboards: ``python -m deploy.grafana``, which `make generate` runs."""

import sys

from deploy.grafana.dashboards import FOLDER, dashboards

for name, content in dashboards().items():
    if not (FOLDER / name).is_file() or (FOLDER / name).read_text(encoding="utf-8") != content:
        (FOLDER / name).write_text(content, encoding="utf-8")
        sys.stdout.write(f"wrote deploy/grafana/{name}\n")
