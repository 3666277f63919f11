"""README's status table against the code: what it calls supported exists, what it calls refused is refused by name."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from devcluster.layout import ROOT
from finetune_contract import tpu
from finetune_operator.api import FineTuneProfileSpec, Reason
from finetune_operator.api.data import DatasetFormat
from finetune_operator.api.evaluation import EvaluationMetric
from finetune_operator.api.export import ExportContent, ExportFormat
from finetune_operator.api.method import MethodType, Quantization
from finetune_operator.api.placement import Capacity, Controller
from finetune_operator.api.policies import MemoryCheck
from finetune_operator.cli.commands import app
from finetune_operator.cli.manifests.checks import check_files
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.policy import profile_checks
from tests.unit.lifecycle.world import profile

README = (ROOT / "README.md").read_text()
TABLE = README.partition("| area | supported |")[2].partition("\n\n")[0]
#: Area -> what is supported, what is refused.
ROWS = {
    area: (supported, refused)
    for area, supported, refused in re.findall(r"^\| (\w+) \| (.*?) \| (.*?) ?\|$", TABLE, re.MULTILINE)
}
#: Area -> words of its row, each with the member of an enumeration of the API or the contract that it stands for.
#: Together they are all members.
MEMBERS: dict[str, list[dict[str, Any]]] = {
    "methods": [
        {"SFT": MethodType.SFT, "DPO": MethodType.DPO, "ORPO": MethodType.ORPO},
    ],
    "data": [
        {
            "messages": DatasetFormat.MESSAGES,
            "prompt/completion": DatasetFormat.PROMPT_COMPLETION,
            "question/answer": DatasetFormat.QUESTION_ANSWER,
            "text": DatasetFormat.TEXT,
            "preference pairs": DatasetFormat.PREFERENCE,
        }
    ],
    "TPUs": [
        {
            "Spot": Capacity.SPOT,
            "on demand": Capacity.ON_DEMAND,
            "reserved": Capacity.RESERVATION,
            "flex-start": Capacity.FLEX_START,
        },
    ],
    "controllers": [{"McJAX": Controller.MCJAX, "Pathways": Controller.PATHWAYS}],
    "evaluation": [
        {
            "loss": EvaluationMetric.LOSS,
            "exact match": EvaluationMetric.EXACT_MATCH,
            "F1": EvaluationMetric.TOKEN_F1,
            "Rouge-L": EvaluationMetric.ROUGE_L,
        }
    ],
    "export": [{"Orbax": ExportFormat.ORBAX_PARAMS, "merged model": ExportFormat.HUGGING_FACE}],
}  # fmt: skip
#: Area -> words of its row, each with the field of the API that provides it.
FIELDS = {
    "methods": {
        "LoRA": "method.lora",
        "quantized": "method.lora.quantization",
        "gradient accumulation": "hyperparameters.gradientAccumulationSteps",
    },
    "models": {"a tuned model": "model.fromJob", "a MaxText checkpoint": "model.orbax"},
    "data": {
        "`gs://`": "datasets.train.uri",
        "Hugging Face Hub": "datasets.train.huggingFace",
        "mixtures": "datasets.train.weight",
        "chat templates": "datasets.chatTemplate",
    },
    "TPUs": {"several": "resources.slices"},
    "controllers": {"McJAX": "resources.controller"},
    "operation": {
        "preemption": "recovery.maxPreemptions",
        "faults": "recovery.maxInfrastructureRetries",
        "hangs": "hangPolicy.noStepSeconds",
        "deadlines": "activeDeadlineSeconds",
        "suspend": "suspend",
        "cancel": "cancel",
        "manual retry": "retry.generation",
        "budgets": "budget.maxCost",
    },
    "preflight": {"memory proof": "preflight.memory", "smoke test": "preflight.smoke"},
    "evaluation": {
        "answers": "evaluation.prompts",
        "benchmarks": "evaluation.benchmarks",
        "base": "evaluation.baseline",
        "gates": "evaluation.gates",
        "best checkpoint": "checkpointing.keep.best",
    },
    "export": {
        "adapter": "export.content",
        "`gs://`": "export.destinations.uri",
        "Hugging Face Hub": "export.destinations.huggingFaceHub",
        "vLLM": "export.serving.enabled",
    },
}
PROFILE_FIELDS = {
    "operation": {"queues": "queue.localQueue"},
    "profiles": {
        "slices": "flavors.topologies",
        "storage": "storage.artifacts",
        "defaults": "defaults",
        "limits": "constraints.limits",
        "policy": "constraints.mode",
    },
}
#: The model's name in the table, by the beginning of its architecture.
FAMILIES = {
    "Llama": "Llama", "Mistral": "Mistral", "Mixtral": "Mixtral", "Qwen2": "Qwen2 and 2.5", "Qwen3Moe": "Qwen3 MoE",
    "Qwen3": "Qwen3", "DeepseekV2": "DeepSeek 2", "Gemma2": "Gemma 2", "Gemma3": "Gemma 2 and 3",
}  # fmt: skip


def spec_schema(kind: str) -> dict[str, Any]:
    (path,) = (ROOT / "crds").glob(f"{kind}.*.yaml")
    schema = yaml.safe_load(path.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec: dict[str, Any] = schema["properties"]["spec"]
    return spec


def has_field(schema: dict[str, Any], path: str) -> bool:
    """Whether the schema has the field; a list stands for its items."""
    for name in path.split("."):
        found = schema.get("items", schema).get("properties", {})
        if name not in found:
            return False
        schema = found[name]
    return True


def test_every_row_with_something_to_check_is_checked() -> None:
    assert sorted(ROWS) == sorted(FIELDS | PROFILE_FIELDS)


@pytest.mark.parametrize("area", MEMBERS)
def test_a_row_names_every_member_of_its_enumerations(area: str) -> None:
    for words in MEMBERS[area]:
        enumeration = type(next(iter(words.values())))
        assert set(words.values()) == set(enumeration) - {DatasetFormat.AUTO}
        assert [word for word in words if word not in ROWS[area][0]] == []


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("finetunejobs", FIELDS), ("finetuneprofiles", PROFILE_FIELDS)],
    ids=["jobs", "profiles"],
)
def test_the_fields_behind_supported_features_exist(kind: str, fields: dict[str, dict[str, str]]) -> None:
    schema = spec_schema(kind)
    for area, words in fields.items():
        assert [word for word in words if word not in ROWS[area][0]] == [], area
        assert [path for path in words.values() if not has_field(schema, path)] == [], area


def test_the_values_behind_supported_features_exist() -> None:
    assert set(Quantization) > {Quantization.NONE}, "LoRA on a quantized base"
    assert {ExportContent.MERGED, ExportContent.ADAPTER} < set(ExportContent)
    assert MemoryCheck.COMPILE in set(MemoryCheck)


def test_the_tpu_families_are_those_of_the_catalogue() -> None:
    generations = re.findall(r"\bv?\d\w*", ROWS["TPUs"][0].partition(";")[0])
    # GKE sells the seventh generation, tpu7x, under two names.
    assert set(generations) == {family.removeprefix("tpu") for family in tpu.families()} - {"7"}


def test_the_model_families_are_those_that_the_trainer_converts() -> None:
    code = (ROOT / "trainer_image/finetune_trainer/families/__init__.py").read_text()
    architectures = re.findall(r'"(\w+)For(?:CausalLM|ConditionalGeneration)":', code)
    assert set(architectures) == set(FAMILIES)
    assert [name for name in FAMILIES.values() if name not in ROWS["models"][0]] == []


def test_the_refused_fields_are_refused_by_name() -> None:
    named = [word for _, refused in ROWS.values() for word in re.findall(r"`([\w.]+)`", refused)]
    code = Path(profile_checks.__file__).read_text()
    assert named == re.findall(r'"(\w+\.\w+)": spec', code)
    for path in named:
        section, name = path.split(".")
        stored = profile()["spec"]
        spec = FineTuneProfileSpec.model_validate({**stored, section: {**stored.get(section, {}), name: 1}})
        with pytest.raises(Refused) as refused:
            profile_checks.refuse_later_fields("team", spec)
        assert refused.value.reason == Reason.NOT_YET_SUPPORTED
        assert f"spec.{path}" in refused.value.message


def test_a_method_with_rollouts_is_refused_by_name(tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    job["spec"]["method"] = {"type": "GRPO"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    ((problem, *_),) = check_files([tmp_path / "job.yaml"]).problems.values()
    assert "spec.method.type" in problem
    assert "GRPO" in problem


def test_the_example_is_valid(tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(README.partition("```yaml\n")[2].partition("```")[0])
    assert not any(check_files([manifest]).problems.values())


def test_the_commands_that_it_shows_exist() -> None:
    shown = set(re.findall(r"^\$? ?finetune (\w+)", README, re.MULTILINE))
    shown |= set(re.findall(r"`(validate|plan|status|watch|logs)`", README))
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert shown
    assert shown <= commands
