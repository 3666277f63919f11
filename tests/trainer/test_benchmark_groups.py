"""Groups and tags of lm-evaluation-harness as one benchmark; the harness's own aggregation is the reference."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import yaml
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from finetune_contract import BenchmarkSpec, DatasetScores, EvaluateOutcome
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation import benchmark_groups, benchmarks
from finetune_trainer.evaluation.benchmark_groups import LoadedEntry
from finetune_trainer.evaluation.benchmark_rows import benchmark_keys, recorded_rows
from finetune_trainer.storage import open_store
from tests.doubles.hub import FakeHub

ROWS = {"red": 3, "green": 5, "blue": 8}
TASK = {
    "output_type": "multiple_choice", "doc_to_text": "{{asked}}", "doc_to_choice": ["a", "bb", "ccc"], "doc_to_target": "gold",
    "test_split": "test",
}  # fmt: skip
BY_SIZE, EQUAL = {"metric": "acc", "weight_by_size": True}, {"metric": "acc_norm", "weight_by_size": False}
#: Files of a harness with a group in a group, a subgroup without a file of its own, a tag, and a change of a task.
HARNESS: Mapping[str, Mapping[str, Any]] = {
    "all": {
        "group": "all",
        "task": ["warm", {"group": "cold", "task": [{"task": "blue", "num_fewshot": 0}], "aggregate_metric_list": [EQUAL]}],
        "aggregate_metric_list": [BY_SIZE, EQUAL],
    },
    "warm": {"group": "warm", "task": ["warm_tasks"], "aggregate_metric_list": [BY_SIZE]},
    "red": {**TASK, "task": "red", "dataset_path": "acme/red", "tag": "warm_tasks"},
    "green": {**TASK, "task": "green", "dataset_path": "acme/rest", "dataset_name": "green", "tag": ["warm_tasks", "plants"]},
    "blue": {**TASK, "task": "blue", "dataset_path": "acme/rest", "dataset_name": "blue", "num_fewshot": 3},
    "code": {**TASK, "task": "code", "dataset_path": "acme/code", "unsafe_code": True},
    "mixed": {"group": "mixed", "task": ["warm", "code", "blue"]},
    "inline": {"group": "inline", "task": [{"task": "own", **TASK, "dataset_path": "acme/red"}]},
    "renaming": {"group": "renaming", "task": [{"task": "warm", "num_fewshot": 1}]},
    "large": {"group": "large", "task": ["warm", *(f"t{i}" for i in range(benchmark_groups.MOST_TASKS))]},
    **{f"t{i}": {**TASK, "task": f"t{i}", "dataset_path": "acme/red"} for i in range(benchmark_groups.MOST_TASKS)},
}  # fmt: skip


class Guessing(LM):
    """Gives each continuation a probability that is arbitrary, but the same each time."""

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return [(-float(crc32("".join(each.args).encode()) % 97), False) for each in requests]

    def loglikelihood_rolling(self, requests: Any) -> Any:
        raise NotImplementedError

    def generate_until(self, requests: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    folder = tmp_path_factory.mktemp("harness")
    for name, config in HARNESS.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return TaskManager(include_path=str(folder), include_defaults=False).task_index


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, index: Mapping[str, Any]) -> None:
    monkeypatch.setattr(benchmark_groups, "known", lambda: index)


def rows(number: int) -> bytes:
    return "".join(
        json.dumps({"asked": f"{'x' * row} of {number}?", "gold": row % 3}) + "\n" for row in range(number)
    ).encode()


def push(hub: FakeHub, more: int = 0) -> None:
    hub.push("acme/red", {"test.jsonl": rows(ROWS["red"] + more)}, kind="dataset")
    readme = "---\nconfigs:\n" + "".join(
        f"- config_name: {name}\n  data_files:\n  - split: test\n    path: {name}/test.jsonl\n"
        for name in ("green", "blue")
    )
    rest = {f"{name}/test.jsonl": rows(ROWS[name] + more) for name in ("green", "blue")}
    hub.push("acme/rest", {"README.md": f"{readme}---\n".encode(), **rest}, kind="dataset")


def loaded(tmp_path: Path, name: str = "all", **changes: Any) -> LoadedEntry:
    spec = BenchmarkSpec(path="spec.evaluation.benchmarks[0]", name=name, **changes)
    return benchmark_groups.load(spec, open_store(), tmp_path)


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize("limit", [None, 4])
def test_a_group_has_the_scores_that_the_harness_aggregates(
    hub: FakeHub, tmp_path: Path, limit: int | None
) -> None:
    push(hub)
    entry = loaded(tmp_path, limit=limit)
    by_name = {"red": 3, "green": 5, "blue": 8} if limit is None else {"red": 3, "green": 4, "blue": 4}
    assert {task.spec.name: task.rows for task in entry.tasks} == by_name
    assert (entry.rows, entry.report.rows, entry.report.tasks) == (sum(by_name.values()),) * 2 + (3,)
    own, members = entry.scores([benchmarks.scores(task, Guessing(), chat=False) for task in entry.tasks])
    found = evaluate(
        lm=Guessing(), limit=limit, bootstrap_iters=0,
        task_dict={
            "tasks": {task.spec.name: task.task for task in entry.tasks},
            "groups": {each.name: each for each in (entry.group, *entry.group.get_all_groups())},
        },
    )["results"]  # fmt: skip
    expected = {
        name: {
            key.removesuffix(",none"): score
            for key, score in scores.items()
            if key in ("acc,none", "acc_norm,none")
        }
        for name, scores in found.items()
    }
    assert own == pytest.approx(expected.pop("all"))
    assert members == {name: pytest.approx(scores) for name, scores in expected.items()}
    assert list(members) == ["warm", "all::cold", "green", "red", "blue"]
    assert own["acc"] != pytest.approx(sum(members[name]["acc"] for name in by_name) / 3)
    assert entry.rows_of("warm") == by_name["red"] + by_name["green"]
    assert entry.metrics == [*own, *(f"{name}/{metric}" for name, each in members.items() for metric in each)]


@pytest.mark.usefixtures("harness")
def test_the_rows_of_a_group_have_the_scores_whose_mean_is_the_groups(hub: FakeHub, tmp_path: Path) -> None:
    """The mean of its tasks, all with equal weight, is no mean over rows."""
    push(hub)
    entry = loaded(tmp_path)
    measured, recorded = [], []
    for task in entry.tasks:
        with recorded_rows(task) as found:
            measured.append(benchmarks.scores(task, Guessing(), chat=False))
        recorded.append(found.measured())
    pooled = entry.pooled_rows(recorded)
    assert [set(each.scores) for each in pooled] == [{"acc"}] * 3
    scores = [
        each.of(key).scores["acc"]
        for task, each in zip(entry.tasks, pooled, strict=True)
        for key in benchmark_keys(task)
    ]
    assert len(scores) == entry.rows
    assert sum(scores) / len(scores) == pytest.approx(entry.scores(measured)[0]["acc"])


@pytest.mark.usefixtures("harness")
def test_all_datasets_of_a_group_are_pinned(hub: FakeHub, tmp_path: Path) -> None:
    push(hub)
    report = loaded(tmp_path).report
    push(hub, more=1)
    pinned = loaded(tmp_path, revision=report.revision, revisions=report.revisions)
    assert sorted(report.revisions) == ["acme/red", "acme/rest"]
    assert pinned.report == report
    assert {task.spec.revision for task in pinned.tasks} == set(report.revisions.values())
    current = loaded(tmp_path)
    assert current.rows == pinned.rows + 3
    assert current.report.revision != report.revision
    assert current.digest != pinned.digest


@pytest.mark.usefixtures("harness")
def test_a_tag_has_its_tasks_and_no_score_of_its_own(hub: FakeHub, tmp_path: Path) -> None:
    push(hub)
    assert loaded(tmp_path, "warm_tasks").metrics == [
        "green/acc", "green/acc_norm", "red/acc", "red/acc_norm"
    ]  # fmt: skip


@pytest.mark.usefixtures("harness")
@pytest.mark.parametrize(
    ("name", "said", "fix"),
    [
        ("mixed", "1 of the 4 tasks of this group are refused (found code: it runs its", "Name instead: warm, blue."),
        ("large", "(found 258 tasks, expected at most 256 in one entry)", "Name instead: warm, t0, t1, t2"),
        ("inline", "inline defines tasks of its own", "Name tasks or subgroups of it instead."),
        ("renaming", "gives its task green the name warm", "Name tasks or subgroups of it instead."),
        ("Worm", "the benchmark does not exist", "Did you mean warm"),
        ("plant", "the benchmark does not exist", "Did you mean plants?"),
    ],
)  # fmt: skip
def test_a_group_that_cannot_be_measured_is_refused_before_anything_is_fetched(
    hub: FakeHub, tmp_path: Path, name: str, said: str, fix: str
) -> None:
    with pytest.raises(StageError) as error:
        loaded(tmp_path, name)
    assert said in str(error.value)
    assert error.value.fix.startswith(fix)
    assert not hub.seen


def test_the_harness_own_groups_expand_with_their_changes() -> None:
    def expanded(name: str) -> Any:
        return benchmark_groups.expanded(BenchmarkSpec(path="x", name=name))

    mmlu = expanded("mmlu")
    assert len(mmlu.get_all_tasks()) == 57
    assert mmlu.child_names == ["mmlu_stem", "mmlu_other", "mmlu_social_sciences", "mmlu_humanities"]
    assert [each.weight_by_size for each in mmlu.aggregate_metric_list] == [True]
    assert len(expanded("bbh").get_all_tasks()) == 27
    assert "mnli" in expanded("glue").child_names
    (arc,) = [each for each in expanded("tinyBenchmarks") if each.task_name == "tinyArc"]
    assert arc.changes["num_fewshot"] == 25


@pytest.mark.parametrize(
    ("name", "said", "instead"),
    [
        ("leaderboard", "run as a program", "leaderboard_mmlu_pro, leaderboard_bbh, leaderboard_gpqa, leaderboard_musr"),
        ("leaderboard_math_hard", "7 of the 7", None),
        ("minerva_math", "parser that evaluates them", None),
        ("humaneval_infilling", "runs its answers as programs", None),
        ("score_robustness", "14 of the 38", "score_robustness_agieval, score_non_greedy_robustness_mmlu_pro"),
    ],
)  # fmt: skip
def test_groups_of_the_harness_that_run_answers_name_what_is_left(
    tmp_path: Path, name: str, said: str, instead: str | None
) -> None:
    with pytest.raises(StageError, match=said) as error:
        loaded(tmp_path, name)
    assert error.value.fix.startswith(f"Name instead: {instead}" if instead else "Remove it.")


def test_metrics_of_members_follow_those_of_the_entries() -> None:
    group = DatasetScores(name="mmlu", rows=9, tuned={"acc": 0.5})
    member = DatasetScores(name="mmlu/mmlu_stem", rows=4, tuned={"acc": 0.25})
    other = DatasetScores(name="gsm8k", rows=4, tuned={"exact_match": 0.75})
    outcome = EvaluateOutcome(
        datasets=[group, other], members=[member], samples_uri="gs://r/samples", rows_uri="gs://r/rows"
    )
    assert list(outcome.metrics("tuned")) == ["mmlu/acc", "gsm8k/exact_match", "mmlu/mmlu_stem/acc"]
