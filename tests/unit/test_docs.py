"""Documents name what the code defines."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from finetune_contract import ExitCode
from finetune_operator.api import Reason, WaitingReason

ROOT = Path(__file__).parents[2]
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text()
TRAINER = ROOT / "trainer_image" / "finetune_trainer"
LIFECYCLE = ROOT / "operator" / "finetune_operator" / "lifecycle"

#: Reasons why `Valid` is False stand in one block of the enumeration, up to the ones about progress.
REFUSALS = list(Reason)[list(Reason).index(Reason.INVALID_SPEC) : list(Reason).index(Reason.NOT_STARTED)]


def trainer_reasons() -> set[str]:
    """The second argument of every StageError: as it stands there, or as it is passed to a function that makes one."""
    trees = [ast.parse(path.read_text()) for path in TRAINER.rglob("*.py")]
    functions = [each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    makers = {each.name for each in functions if any(_passes_reason_on(call) for call in calls(each))}
    found: set[str] = set()
    for call in (call for tree in trees for call in calls(tree)):
        if name_of(call) == "StageError":
            found |= named(call.args[1:2])
        elif name_of(call) in makers:
            found |= named([*call.args, *(keyword.value for keyword in call.keywords)])
    return found


def calls(tree: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(tree) if isinstance(each, ast.Call)]


def name_of(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _passes_reason_on(call: ast.Call) -> bool:
    return name_of(call) == "StageError" and any(isinstance(each, ast.Name) for each in call.args[1:2])


def named(arguments: Sequence[ast.expr]) -> set[str]:
    """Those of ``arguments`` that have the form of a reason."""
    texts = (
        each.value for argument in arguments for each in ast.walk(argument) if isinstance(each, ast.Constant)
    )
    return {
        text for text in texts if isinstance(text, str) and re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z]*)*", text)
    }


def operator_failures() -> set[str]:
    """Reasons of attempts' ends that the operator writes: literals, and constants of modules in ``attempts``."""
    code = "".join(path.read_text() for path in LIFECYCLE.rglob("*.py"))
    attempts = "".join(path.read_text() for path in (LIFECYCLE / "attempts").glob("*.py"))
    constants = re.findall(r"^[A-Z]\w+ = \"([A-Z]\w+)\"", attempts, re.MULTILINE)
    return {*re.findall(r"reason=\"([A-Z]\w+)\"", code), *constants}


@pytest.mark.parametrize("reason", [*REFUSALS, *WaitingReason])
def test_every_refusal_and_every_wait_has_a_row(reason: str) -> None:
    assert f"| `{reason}` |" in TROUBLESHOOTING


@pytest.mark.parametrize("code", list(ExitCode), ids=lambda code: code.name)
def test_every_exit_code_has_a_row(code: ExitCode) -> None:
    assert re.search(rf"^\| {int(code)} \|", TROUBLESHOOTING, re.MULTILINE)


def test_every_failure_is_explained() -> None:
    trainer, operator = trainer_reasons(), operator_failures()
    assert len(trainer) > 60, "reasons of the trainer are found"
    assert len(operator) > 20, "reasons of the operator are found"
    known = trainer | operator
    assert sorted(reason for reason in known if f"`{reason}`" not in TROUBLESHOOTING) == []


def test_every_supported_architecture_is_listed() -> None:
    listed = (ROOT / "docs" / "supported-models.md").read_text()
    code = (TRAINER / "families" / "__init__.py").read_text()
    architectures = set(re.findall(r"\"(\w+For(?:CausalLM|ConditionalGeneration))\"", code))
    assert architectures
    assert sorted(name for name in architectures if f"`{name}`" not in listed) == []


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    named = {
        target
        for path in documents
        for block in re.findall(r"```bash\n(.*?)```|`(make [^`]*)`", path.read_text(), re.DOTALL)
        for target in re.findall(r"(?:^|&& |; )make ([a-z0-9-]+)", "".join(block), re.MULTILINE)
    }
    assert named
    assert named <= targets


def test_every_test_that_the_threat_model_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs" / "security.md").read_text())
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_the_requirement_without_arm64_is_the_pinned_one() -> None:
    """Whether a later release has wheels for arm64 is to be looked up again."""
    (pinned,) = re.findall(
        r"^libtpu==(\S+)", (ROOT / "trainer_image/requirements-tpu.txt").read_text(), re.MULTILINE
    )
    page = (ROOT / "docs/tpu-slices.md").read_text()
    assert set(re.findall(r"libtpu(?:` |==)([\d.]+\d)", page)) == {pinned}


@pytest.mark.parametrize(
    "missing",
    [
        "elastic slices",
        "restart in place",
        "several tiers",
        "topology-aware",
        "dynamic slices",
        "TPU 8t",
        "MultiKueue",
    ],
)
def test_what_is_not_here_yet_has_a_row_in_the_one_table(missing: str) -> None:
    table = (ROOT / "README.md").read_text().partition("### Not here yet")[2].partition("\n## ")[0]
    assert len([row for row in table.splitlines() if row.startswith("|") and missing in row]) == 1
    assert "../README.md#not-here-yet" in (ROOT / "docs/recovery.md").read_text()
