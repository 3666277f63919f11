"""What `helm install` prints works as it is printed."""

import re
from pathlib import Path

import yaml

from tests.plan_pages import plan_page

ROOT = Path(__file__).parents[3]
NOTES = (ROOT / "charts" / "finetune-operator" / "templates" / "NOTES.txt").read_text()


def test_the_first_job_of_the_notes_is_admitted_under_their_profile() -> None:
    profile, job = (ROOT / name for name in re.findall(r"kubectl apply .*?-f (\S+\.yaml)", NOTES))
    namespaces = set(re.findall(r"-n (\S+)", NOTES.split("Fine-tune", 1)[1]))
    written = yaml.safe_load(job.read_text())
    assert namespaces == {written["metadata"]["namespace"]}
    assert f"watch -n {written['metadata']['namespace']} {written['metadata']['name']}" in NOTES
    assert "Train" in plan_page(job, profile)
