"""What is generated from the models is committed as it is."""

from pathlib import Path

import pytest

from tools.generate import generated_files, main, outdated, write

ROOT = Path(__file__).parents[3]


def test_committed_files_are_what_the_models_say() -> None:
    assert outdated(ROOT) == []


def test_check_names_what_is_out_of_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(write(tmp_path)) == set(generated_files())
    assert main(["--check", "--root", str(tmp_path)]) == 0
    (tmp_path / "docs/reference/api.md").write_text("edited")
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert "docs/reference/api.md is out of date" in capsys.readouterr().err
    assert main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "wrote docs/reference/api.md\n"


def test_the_reference_names_every_object() -> None:
    page = generated_files()["docs/reference/api.md"]
    for heading in (
        "FineTuneJob.spec.datasets.train[]",
        "FineTuneJob.status",
        "FineTuneProfile.spec.flavors[]",
    ):
        assert f"\n### {heading}\n" in page


def test_the_chart_can_leave_the_crds_to_others_and_keep_them() -> None:
    template = generated_files()["charts/finetune-operator/templates/crds/finetunejobs.yaml"]
    assert "{{- if .Values.crds.install }}" in template
    assert "{{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n" in template
    assert "    argocd.argoproj.io/sync-options: Prune=false\n  {{- end }}\n" in template
