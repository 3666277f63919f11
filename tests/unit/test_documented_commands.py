"""Commands and manifests of README.md and docs/*.md: parsed by the programs and models that they are for, or marked."""

import re
from typing import Any

import pytest
import typer.main
import yaml

from devcluster.layout import ROOT
from finetune_operator.cli.commands import app
from finetune_operator.cli.manifests.checks import check_files
from tests.documents import MARKS, blocks, documented
from tests.setup_script import commands, plan

#: Read by a test: the first five here, kubectl and helm by the real programs in tests/integration/chart, gcloud by the
#: table of published flags in test_install_guide.py.
CHECKED = {
    "finetune",
    "make",
    ".venv/bin/python",
    "python",
    "deploy/gke/setup.sh",
    "kubectl",
    "helm",
    "gcloud",
}
#: Utilities of every machine, which a reader knows.
UTILITIES = {
    *(
        "cd",
        "curl",
        "diff",
        "echo",
        "eval",
        "export",
        "git",
        "jq",
        "less",
        "printf",
        "python3",
        "read",
        "rm",
        "sed",
    ),
    # In the trainer's environment; its own tests run its stages.
    "finetune-stage",
}
SCHEMAS: dict[str, dict[str, Any]] = {
    kind: yaml.safe_load((ROOT / "crds" / f"{kind}.tpu-finetune.dev.yaml").read_text())["spec"]["versions"][
        0
    ]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for kind in ("finetunejobs", "finetuneprofiles")
}
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
VALUES = yaml.safe_load((ROOT / "charts" / "finetune-operator" / "values.yaml").read_text())
#: Those of the walkthrough are captured from real objects.
MANIFESTS_AND_FRAGMENTS = [
    block for block in blocks("yaml") if not block.mark and block.page != "walkthrough.md"
]
MANIFESTS = [block for block in MANIFESTS_AND_FRAGMENTS if "\nkind:" in f"\n{block.text}"]
FRAGMENTS = [block for block in MANIFESTS_AND_FRAGMENTS if block not in MANIFESTS]


def name(words: list[str]) -> str:
    """The program, without the folder of an environment."""
    return re.sub(
        r"^(\.venv/bin/finetune|.*trainer_image/install\.sh\)/bin/\S+)$",
        lambda m: m[1].rpartition("/")[2],
        words[0],
    )


def test_every_mark_is_a_known_one() -> None:
    marks = {block.mark for language in ("bash", "yaml") for block in blocks(language)}
    assert marks <= {"", *MARKS}
    assert "needs a cloud" in marks


def test_an_unmarked_block_has_only_commands_that_a_test_reads() -> None:
    unknown = set()
    for block in blocks("bash"):
        for words in [] if block.mark else commands(block.text):
            while words and re.match(r"[A-Za-z_]+=", words[0]):
                words.pop(0)
            if words and name(words) not in CHECKED | UTILITIES:
                unknown.add(f"{block.page}: {' '.join(words)[:80]}")
    assert sorted(unknown) == []


@pytest.mark.parametrize("words", documented("finetune", ".venv/bin/finetune"), ids=" ".join)
def test_the_command_takes_what_documents_give_it(words: list[str]) -> None:
    command, *arguments = words[1:]
    COMMANDS[command].make_context(command, arguments)


def test_the_set_up_script_takes_what_documents_give_it() -> None:
    given = {
        " ".join(each for each in words[1:] if each != "--dry-run")
        for words in documented("deploy/gke/setup.sh")
    }
    assert given
    for arguments in given:
        assert plan(*arguments.split())


def test_modules_that_documents_run_exist() -> None:
    for words in documented("python", ".venv/bin/python"):
        if words[1] == "-m" and words[2] != "pytest":
            path = ROOT / words[2].replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), words


@pytest.mark.parametrize("block", MANIFESTS, ids=lambda block: block.page)
def test_a_manifest_of_ours_is_valid(block: Any, tmp_path: Any) -> None:
    for number, document in enumerate(yaml.safe_load_all(block.text)):
        if document and "tpu-finetune.dev" in document["apiVersion"]:
            file = tmp_path / f"{number}.yaml"
            file.write_text(yaml.safe_dump(document))
            assert not any(check_files([file]).problems.values())


@pytest.mark.parametrize("block", FRAGMENTS, ids=lambda block: f"{block.page}: {block.text.splitlines()[0]}")
def test_a_fragment_has_fields_of_a_job_a_profile_or_the_chart(block: Any) -> None:
    for document in yaml.safe_load_all(block.text):
        own = document if isinstance(document, dict) else {}
        spec = own.get("spec", own)
        assert any(
            all(_has(schema, key, value) for key, value in spec.items())
            for schema in (*SCHEMAS.values(), {"properties": {key: {} for key in VALUES}})
        ), f"{block.page}: {sorted(spec)}"


def _has(schema: dict[str, Any], key: str, value: object) -> bool:
    """Whether the schema has the field, and all that is in it."""
    field = schema.get("properties", {}).get(key)
    if field is None:
        return False
    if isinstance(value, dict) and "properties" in field:
        return all(_has(field, inner, each) for inner, each in value.items())
    if isinstance(value, list) and "properties" in field.get("items", {}):
        return all(_has(field["items"], inner, each) for item in value for inner, each in dict(item).items())
    return True
