"""Benchmarks: tasks of lm-evaluation-harness on our model; the scores are recomputed from plain logits."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import nltk
import numpy as np
import pytest
import yaml
from jax.errors import JaxRuntimeError
from lm_eval.api import metrics
from lm_eval.api.registry import AGGREGATION_REGISTRY, FILTER_REGISTRY, METRIC_REGISTRY

from finetune_contract import BenchmarkSpec, ExitCode
from finetune_trainer import families
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.conversion import streaming
from finetune_trainer.engine import maxtext
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation import benchmark_groups, benchmarks, plain_tasks
from finetune_trainer.evaluation.benchmark_rows import benchmark_keys, recorded_rows
from finetune_trainer.evaluation.generate import Generator
from finetune_trainer.evaluation.harness import HarnessModel
from finetune_trainer.evaluation.likelihood import Likelihood
from finetune_trainer.evaluation.loaded_backend import LoadedModelBackend
from finetune_trainer.evaluation.models import LoadedModel, load
from finetune_trainer.evaluation.sampling import Sampling
from finetune_trainer.storage import engine_path, open_store
from finetune_trainer.tokens.template import Renderer
from tests.doubles.hub import FakeHub
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer import harness_code
from tests.trainer.fixed_rows import FixedRowCapacity
from tests.trainer.full_forward import FullForward

ROWS, NEW, CONTEXT = 4, 12, 96
COUNTRIES = ("France", "Japan", "Italy", "Spain", "Peru", "Chad")
CHOICES = ["Paris is the capital", "Tokyo", "It is Rome, of course"]
SAID = [
    f"The capital of {country} is not far from here.\nIt is known for more than one thing."
    for country in COUNTRIES
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    loaded: LoadedModel
    tokenizer: Any
    forward: FullForward

    @property
    def renderer(self) -> Renderer:
        return Renderer(self.tokenizer, train_on_prompt=False)

    def harness(self, **changes: Any) -> HarnessModel:
        sizes = {"context": CONTEXT, "seed": 0, **changes}
        engine = LoadedModelBackend(
            self.loaded,
            row_capacity=FixedRowCapacity(number=ROWS),
            context=sizes["context"],
            end_ids=self.renderer.end_ids(),
        )
        return HarnessModel(engine, self.tokenizer, self.renderer, **sizes)

    def prompt(self, country: str) -> str:
        asked = [{"role": "user", "content": f"What is the capital of {country}?"}]
        text: str = self.tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        return text

    def nats(self, context: Sequence[int], rest: Sequence[int]) -> float:
        """Returns the log-probability of ``rest``, from the logits of an ordinary forward pass."""
        whole = [*context, *rest]
        (logits,) = self.forward.logits([whole])
        wide = logits[len(context) - 1 : -1].astype(np.float64)
        normal = np.log(np.exp(wide - wide.max(-1, keepdims=True)).sum(-1)) + wide.max(-1)
        return float((wide[np.arange(len(rest)), list(rest)] - normal).sum())

    def said(self, before: str, after: str) -> float:
        """Returns the log-probability of the text ``after``.

        The texts are split where the harness splits them: spaces belong to the second text.
        """
        ids = self.renderer.ids(before + after)
        known = len(self.renderer.ids(before.rstrip()))
        return self.nats(ids[:known], ids[known:])


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    from transformers import AutoTokenizer

    root = tmp_path_factory.mktemp("model")
    folder = write_model(root / "hf", TinyModelSpec(std=0.125))
    plan = families.read(folder)
    maxtext.prepare(plan)
    items = streaming.convert(open_weights(folder, plan), plan, f"file://{root}/c", store=open_store()).items
    config = maxtext.configure(
        plan, maxtext.SFT, run_name="x", base_output_directory=str(root), hardware="cpu", packing=False,
        load_parameters_path=engine_path(items), dtype="float32", weight_dtype="float32",
        attention="dot_product", per_device_batch_size=ROWS, max_target_length=64, matmul_precision="highest",
    )  # fmt: skip
    return Case(
        loaded=load(config),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        forward=FullForward(items, plan, rows=1, length=128, scratch=root),
    )


def described(folder: Path, rows: Sequence[dict[str, Any]], **config: Any) -> Path:
    """Writes a folder with the task ``mine`` on these rows."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
        "test_split": "test",
        "doc_to_text": "What is the capital of {{country}}?",
        **config,
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(told))
    return folder


def spec(folder: Path, **changes: Any) -> BenchmarkSpec:
    return BenchmarkSpec(path="spec.evaluation.benchmarks[0]", name="mine", uri=f"file://{folder}", **changes)


def measured(case: Case, folder: Path, tmp_path: Path, **changes: Any) -> dict[str, float]:
    benchmark = benchmarks.load(spec(folder, **changes), open_store(), tmp_path / "scratch")
    return benchmarks.scores(benchmark, case.harness(), chat=True)


def test_of_several_choices_the_likeliest_is_the_models(case: Case, tmp_path: Path) -> None:
    rows = [{"country": country, "gold": i % len(CHOICES)} for i, country in enumerate(COUNTRIES)]
    folder = described(
        tmp_path / "task", rows, output_type="multiple_choice", doc_to_choice=CHOICES, doc_to_target="gold"
    )
    nats = np.array([[case.said(case.prompt(row["country"]), each) for each in CHOICES] for row in rows])
    gold = [row["gold"] for row in rows]
    lengths = np.array([len(each) for each in CHOICES])
    assert measured(case, folder, tmp_path) == {
        "acc": float((nats.argmax(1) == gold).mean()),
        "acc_norm": float(((nats / lengths).argmax(1) == gold).mean()),
    }


def test_each_row_has_the_scores_that_are_means(case: Case, tmp_path: Path) -> None:
    """A perplexity belongs to all rows together. Every filter of the answers has its own scores."""
    rows = [{"country": country, "said": said} for country, said in zip(COUNTRIES, SAID, strict=True)]
    nothing = [{"function": "take_first"}]
    kinds: list[tuple[dict[str, Any], set[str]]] = [
        ({"output_type": "loglikelihood"}, {"acc"}),
        (
            {
                "output_type": "generate_until",
                "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
                "metric_list": [{"metric": "exact_match"}],
                "filter_list": [
                    {"name": "whole", "filter": nothing},
                    {
                        "name": "cut,first",
                        "filter": [{"function": "regex", "regex_pattern": "(.)"}, *nothing],
                    },
                ],
            },
            {"exact_match,whole", "exact_match,cut,first"},
        ),
    ]
    digests = []
    for number, (kind, names) in enumerate(kinds):
        folder = described(tmp_path / str(number), rows, doc_to_target="{{said}}", **kind)
        benchmark = benchmarks.load(spec(folder, limit=4), open_store(), tmp_path / f"scratch-{number}")
        with recorded_rows(benchmark) as recorded:
            found = benchmarks.scores(benchmark, case.harness(context=1024), chat=True)
        scores = recorded.measured().scores
        assert set(scores) == names
        for name, values in scores.items():
            assert len(values) == 4
            assert sum(values) / 4 == pytest.approx(found[name], rel=1e-12)
        keys = list(benchmark_keys(benchmark))
        assert [key.question for key in keys] == [0, 1, 2, 3]
        digests += [key.digest for key in keys]
        assert {key.content for key in keys} == {
            None
        }  # without a revision, other prompts may belong to the name
    assert len(set(digests)) == 8


def test_the_content_of_a_row_does_not_depend_on_the_chat_template(case: Case, tmp_path: Path) -> None:
    rows = [{"country": country, "said": said} for country, said in zip(COUNTRIES, SAID, strict=True)]
    folder = described(tmp_path / "task", rows, output_type="loglikelihood", doc_to_target="{{said}}")
    found = []
    for revision, chat in (("sha256:1", True), ("sha256:1", False), ("sha256:2", True)):
        benchmark = benchmarks.load(spec(folder, limit=4), open_store(), tmp_path / f"{revision}-{chat}")
        benchmark = replace(benchmark, spec=benchmark.spec.model_copy(update={"revision": revision}))
        benchmarks.scores(benchmark, case.harness(), chat=chat)
        found.append(list(benchmark_keys(benchmark)))
    templated, plain, other = ([key.content for key in keys] for keys in found)
    assert templated == plain
    assert len(set(templated)) == 4
    assert not set(templated) & set(other)
    assert not {key.digest for key in found[0]} & {key.digest for key in found[1]}


def test_a_continuation_has_the_probability_of_its_tokens(case: Case, tmp_path: Path) -> None:
    rows = [{"country": country, "said": said} for country, said in zip(COUNTRIES, SAID, strict=True)]
    folder = described(tmp_path / "task", rows, output_type="loglikelihood", doc_to_target="{{said}}")
    nats = [case.said(case.prompt(row["country"]), row["said"]) for row in rows]
    found = measured(case, folder, tmp_path)
    assert math.log(found["perplexity"]) == pytest.approx(-np.mean(nats), rel=1e-6)
    assert found["acc"] == 0.0
    some = measured(case, folder, tmp_path, limit=2)
    assert math.log(some["perplexity"]) == pytest.approx(-np.mean(nats[:2]), rel=1e-6)


def test_likelihoods_are_the_same_where_devices_hold_half_of_the_rows(case: Case) -> None:
    pairs = [
        (case.renderer.ids(country), case.renderer.ids(said))
        for country, said in zip(COUNTRIES, SAID, strict=True)
    ]
    whole, halved = (
        Likelihood(case.loaded, row_capacity=FixedRowCapacity(number=ROWS), longest=CONTEXT) for _ in range(2)
    )
    run, refused = halved._run, list[int]()

    def half(state: Any, tokens: Any, *others: Any) -> Any:
        if len(tokens) > ROWS // 2:
            refused.append(len(tokens))
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm")
        return run(state, tokens, *others)

    halved._run = half
    for (nats, likeliest), (found, also) in zip(whole.of(pairs), halved.of(pairs), strict=True):
        assert found == pytest.approx(nats, rel=1e-6)
        assert also == likeliest
    assert refused == [ROWS]


def test_a_text_is_measured_whole_with_nothing_before_it(case: Case, tmp_path: Path) -> None:
    rows = [{"said": said} for said in SAID]
    folder = described(
        tmp_path / "task", rows, output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{said}}",
        metric_list=[{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}],
    )  # fmt: skip
    nats = sum(case.nats([case.tokenizer.bos_token_id], case.renderer.ids(said)) for said in SAID)
    found = measured(case, folder, tmp_path)
    words, size = sum(len(said.split()) for said in SAID), sum(len(said.encode()) for said in SAID)
    assert math.log(found["word_perplexity"]) == pytest.approx(-nats / words, rel=1e-6)
    assert math.log(found["byte_perplexity"]) == pytest.approx(-nats / size, rel=1e-6)


def test_answers_are_generated_and_cut_at_the_tasks_own_stops(case: Case, tmp_path: Path) -> None:
    prompts = [case.renderer.ids(case.prompt(country)) for country in COUNTRIES]
    answers = Generator(
        case.loaded,
        Sampling(max_new_tokens=NEW),
        end_ids=case.renderer.end_ids(),
        row_capacity=FixedRowCapacity(number=ROWS),
        longest=CONTEXT,
        cached=False,
    ).answers(prompts)
    texts = [case.tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
    stop = texts[0][3]
    wanted = [text.partition(stop)[0] for text in texts]
    assert any(len(cut) < len(text) for cut, text in zip(wanted, texts, strict=True))
    rows = [
        {"country": country, "answer": answer if i % 2 else f"not {answer}"}
        for i, (country, answer) in enumerate(zip(COUNTRIES, wanted, strict=True))
    ]
    folder = described(
        tmp_path / "task", rows, output_type="generate_until", doc_to_target="{{answer}}",
        generation_kwargs={"until": [stop], "max_gen_toks": NEW}, metric_list=[{"metric": "exact_match"}],
    )  # fmt: skip
    assert measured(case, folder, tmp_path) == {"exact_match": 0.5}


def test_few_shots_are_the_same_for_every_model(case: Case, tmp_path: Path) -> None:
    rows = [{"country": country, "said": said} for country, said in zip(COUNTRIES, SAID, strict=True)]
    shots = {"num_fewshot": 1, "fewshot_split": "test"}
    folder = described(
        tmp_path / "task", rows, output_type="loglikelihood", doc_to_target="{{said}}", **shots
    )
    benchmark = benchmarks.load(spec(folder), open_store(), tmp_path / "scratch")
    harness = case.harness(context=1024)
    first = benchmarks.scores(benchmark, harness, chat=True)
    assert first == benchmarks.scores(benchmark, harness, chat=True)


def test_a_pair_longer_than_the_context_loses_its_beginning(case: Case) -> None:
    ids = np.random.default_rng(0).integers(30, 500, 60).tolist()
    likelihood = Likelihood(case.loaded, row_capacity=FixedRowCapacity(number=2), longest=40)
    ((nats, likeliest),) = likelihood.of([(ids[:50], ids[50:])])
    assert nats == pytest.approx(case.nats(ids[19:50], ids[50:]), rel=1e-5)
    assert not likeliest


def test_a_text_longer_than_the_context_is_measured_in_pieces(case: Case) -> None:
    text = SAID[0]
    ids = case.renderer.ids(text)
    (nats,) = case.harness(context=16).loglikelihood_rolling([Asked(args=(text,))])
    pieces = [case.nats([case.tokenizer.bos_token_id], ids[:16])]
    for start in range(16, len(ids), 16):
        piece = ids[start : start + 16]
        end = start + len(piece)
        before = ids[end - 17 : start]
        pieces.append(case.nats(before, piece))
    assert nats == pytest.approx(sum(pieces), rel=1e-5)


@dataclass(frozen=True)
class Asked:
    """A stand-in for a request of the harness."""

    args: tuple[str, ...]


def test_what_the_likeliest_tokens_say_is_reported_as_such(case: Case) -> None:
    prompt = case.renderer.ids(case.prompt("Peru"))
    (answer,) = Generator(
        case.loaded,
        Sampling(max_new_tokens=NEW),
        end_ids=frozenset(),
        row_capacity=FixedRowCapacity(number=1),
        longest=CONTEXT,
        cached=False,
    ).answers([prompt])
    likelihood = Likelihood(case.loaded, row_capacity=FixedRowCapacity(number=2), longest=CONTEXT)
    other = [*answer[:-1], (answer[-1] + 1) % 500]
    assert [greedy for _, greedy in likelihood.of([(prompt, answer), (prompt, other)])] == [True, False]
    jax.clear_caches()


CHOICE = {"output_type": "multiple_choice", "doc_to_choice": CHOICES, "doc_to_target": "gold"}
ANSWERED = {"output_type": "generate_until", "doc_to_target": "{{gold}}", "doc_to_choice": None}
EXACT = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}


def asking(**metric: Any) -> dict[str, Any]:
    return {**ANSWERED, "metric_list": [{**EXACT, **metric}]}


def filtered(**function: Any) -> dict[str, Any]:
    return {**asking(), "filter_list": [{"name": "some", "filter": [function]}]}


#: For each broken task: the fields that change, and part of the error message.
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no such column": ({"doc_to_text": "{{town}}"}, "'town' is undefined"),
    "a template that breaks out": ({"doc_to_text": "{{ ''.__class__.__mro__ }}"}, "unsafe"),
    "a file elsewhere": ({"dataset_kwargs": {"data_files": {"test": "../rows.jsonl"}}}, "in the folder"),
    "a file on the network": ({"dataset_kwargs": {"data_files": {"test": "https://x/y"}}}, "in the folder"),
    "no files": ({"dataset_kwargs": {}}, "in the folder"),
    "a dataset of the hub": ({"dataset_path": "openai/gsm8k"}, "must be in the folder"),
    "another file's settings": ({"include": "base.yaml"}, "anything outside"),
    "a metric of the hub": ({"metric_list": [{"metric": "somebody/metric"}]}, "no such metric"),
    "a metric's program of the hub": (asking(hf_evaluate=True), "found metric_list[0].hf_evaluate"),
    "an option that no metric has": (asking(weight_by_size=True), "found metric_list[0].weight_by_size"),
    "no such aggregation": (asking(aggregation="utils.mine"), "found metric_list[0].aggregation: utils.mine"),
    "a filter that calls": (filtered(function="custom", filter_fn="os.system"), "filter[0].function: custom"),
    "a filter of no name": (filtered(function=["custom"]), "no such filter"),
    "metrics that are none": ({"metric_list": ["acc"]}, "metric_list[0] is not a mapping"),
    "a class": ({"class": "task.Mine"}, "found class"),
    "rows that are made": ({"custom_dataset": "utils.make"}, "found custom_dataset"),
    "scores that are made": ({"process_results": "utils.score"}, "found process_results"),
    "rows that are changed": ({"fewshot_config": {"process_docs": "utils.f"}}, "found fewshot_config.process_docs"),
    "a key that nobody knows": ({"hf_evaluate": True}, "found hf_evaluate"),
    "a dataset's own code": (
        {"dataset_kwargs": {"data_files": {"test": "rows.jsonl"}, "trust_remote_code": True}},
        "found dataset_kwargs.trust_remote_code",
    ),
    "pictures": ({"doc_to_image": "{{country}}"}, "found doc_to_image"),
    "answers that are programs": ({"unsafe_code": True}, "found unsafe_code"),
    "no such split": ({"test_split": "train"}, "cannot create this task"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), BROKEN.values(), ids=BROKEN)
def test_a_task_that_cannot_be_used_says_why(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    folder = described(tmp_path / "task", [{"country": "Peru", "gold": 0}], **{**CHOICE, **changes})
    with pytest.raises(StageError) as error:
        benchmarks.load(spec(folder), open_store(), tmp_path / "scratch")
    assert (error.value.code, error.value.reason) == (ExitCode.BAD_DATA, "BenchmarkInvalid")
    assert said in str(error.value)
    assert str(error.value).startswith("spec.evaluation.benchmarks[0]: ")
    assert error.value.fix


def test_a_key_that_asks_for_nothing_is_left_out(tmp_path: Path) -> None:
    changes = {**asking(hf_evaluate=False, ignore_case=True), "unsafe_code": False, "include": None}
    folder = described(tmp_path / "task", [{"country": "Peru", "gold": "Lima"}], **changes)
    assert list(benchmarks.load(spec(folder), open_store(), tmp_path / "scratch").metrics) == ["exact_match"]


def test_the_lists_are_those_of_the_harness() -> None:
    """If a new release computes more metrics, or others under the same names, review what they do before updating the
    lists."""
    own = {"METRICS": METRIC_REGISTRY, "AGGREGATIONS": AGGREGATION_REGISTRY}
    for name, registry in own.items():
        known = {key for key in registry.keys() if registry[key].__module__ == metrics.__name__}  # noqa: SIM118
        assert getattr(plain_tasks, name) == known
    filters = {
        key for key in FILTER_REGISTRY.keys() if FILTER_REGISTRY[key].__module__.startswith("lm_eval.filters.")  # noqa: SIM118
    }  # fmt: skip
    assert filters - {"custom", "decontaminate"} == plain_tasks.FILTERS


def test_no_program_of_a_metric_is_fetched_however_the_function_was_come_by() -> None:
    """This includes a function that was imported before the trainer; the test runs in a process of its own."""
    code = """
import evaluate
early = evaluate.load
import finetune_trainer.evaluation.benchmarks
from evaluate.loading import load
from finetune_trainer.evaluation.plain_tasks import LoadRefusedError
asked = [
    evaluate.load, load, early, evaluate.combine, evaluate.EvaluationSuite.load,
    lambda name: evaluate.inspect_evaluation_module(name, "here"),
]
for each in asked:
    try:
        each(["exact_match"] if each is evaluate.combine else "exact_match")
    except LoadRefusedError:
        print("refused")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["refused"] * 6


def test_datasets_loads_no_metrics_either() -> None:
    import datasets

    assert not hasattr(datasets, "load_metric")


def test_no_task_of_the_harness_runs_answers_or_fetches_programs() -> None:
    """According to the pinned harness's code, no function of a task that is not refused leads to a forbidden name."""
    found = {}
    for name, (_, config) in harness_code.known_tasks().items():
        try:
            plain_tasks.require_known(BenchmarkSpec(path="x", name=name), config)
        except StageError:
            continue
        for place in plain_tasks.functions(config):
            # language_data provides the data, and replaces the download
            provided = {"nltk.download"} if place.startswith("ifeval/utils.") else set()
            if used := harness_code.uses(place) - provided:
                found[place] = sorted(used)
    assert not found


@pytest.mark.parametrize(
    ("place", "used"),
    [
        ("score/math/utils_math.process_results", "sympy.parsing.sympy_parser.parse_expr"),
        ("longproc/metrics.process_results_countdown", "eval"),
        ("longproc/metrics.process_results_pseudo_to_code", "subprocess.Popen"),
        ("cruxeval/utils.pass_at_k", "exec"),
        ("meddialog/utils_perplexity.process_results_raw", "evaluate.load"),
        ("evalita_llm/sum_utils.process_results_sum", "evaluate.load"),
    ],
)
def test_what_is_forbidden_is_found_where_a_function_leads(place: str, used: str) -> None:
    assert used in harness_code.uses(place)


def test_metrics_that_are_never_called_come_from_the_harness() -> None:
    """The harness itself would load the metrics' programs nevertheless."""
    file = benchmark_groups.known()["afrimmlu_direct_amh_prompt_1"].yaml_path
    assert "hf_evaluate: true" in (file.parent / "afrimmlu_direct").read_text()
    config = benchmarks.resolved(BenchmarkSpec(path="x", name="afrimmlu"), file)
    assert [metric["metric"] for metric in config["metric_list"]] == ["f1", "acc"]
    assert not any("hf_evaluate" in metric for metric in config["metric_list"])


def test_code_in_a_task_is_never_run(tmp_path: Path) -> None:
    folder = described(tmp_path / "task", [{"country": "Peru", "gold": 0}], **CHOICE)
    with (folder / "mine.yaml").open("a") as file:
        file.write("process_docs: !function helper.run\n")
    (folder / "helper.py").write_text("raise SystemExit('was run')\n")
    with pytest.raises(StageError, match="!function") as error:
        benchmarks.load(spec(folder), open_store(), tmp_path / "scratch")
    assert error.value.reason == "BenchmarkInvalid"


@pytest.mark.parametrize("gone", ["mine.yaml", "rows.jsonl"])
def test_a_folder_that_lacks_a_file_says_which(tmp_path: Path, gone: str) -> None:
    folder = described(tmp_path / "task", [{"country": "Peru", "gold": 0}], **CHOICE)
    (folder / gone).unlink()
    with pytest.raises(StageError, match=gone) as error:
        benchmarks.load(spec(folder), open_store(), tmp_path / "scratch")
    assert (error.value.code, error.value.reason) == (ExitCode.INPUT_MISSING, "BenchmarkMissing")


def test_rows_that_have_changed_since_preflight_are_refused(tmp_path: Path) -> None:
    folder = described(tmp_path / "task", [{"country": "Peru", "gold": 0}], **CHOICE)
    found = benchmarks.load(spec(folder), open_store(), tmp_path / "scratch")
    assert benchmarks.load(spec(folder, revision=found.revision), open_store(), tmp_path / "again").rows == 1
    (folder / "rows.jsonl").write_text('{"country": "Chad", "gold": 0}\n')
    with pytest.raises(StageError) as error:
        benchmarks.load(spec(folder, revision=found.revision), open_store(), tmp_path / "third")
    assert error.value.reason == "InputChanged"


def test_a_task_of_the_harness_is_loaded_at_one_commit_of_its_dataset(hub: FakeHub, tmp_path: Path) -> None:
    line = json.dumps({"question": "What is 6 times 7?", "answer": "6 times 7 is 42.\n#### 42"}) + "\n"
    readme = (
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train.jsonl\n"
        "  - split: test\n    path: main/test.jsonl\n---\n"
    )
    files = {"README.md": readme, "main/train.jsonl": line * 8, "main/test.jsonl": line * 3}
    first = hub.push("openai/gsm8k", {name: text.encode() for name, text in files.items()}, kind="dataset")
    hub.push("openai/gsm8k", {"main/test.jsonl": line.encode()}, kind="dataset")
    asked = BenchmarkSpec(path="spec.evaluation.benchmarks[0]", name="gsm8k", revision=first)
    found = benchmark_groups.load(asked, open_store(), tmp_path)
    assert (found.rows, found.report.revision, found.report.tasks) == (3, first, 1)
    assert found.metrics == ["exact_match,strict-match", "exact_match,flexible-extract"]


def test_ifeval_counts_words_and_sentences_with_data_of_the_image(hub: FakeHub, tmp_path: Path) -> None:
    """Its instructions cover NLTK's sentences and words, and langdetect."""
    asked: dict[str, dict[str, Any]] = {
        "length_constraints:number_sentences": {"relation": "at least", "num_sentences": 2},
        "change_case:capital_word_frequency": {"capital_relation": "at least", "capital_frequency": 2},
        "language:response_language": {"language": "fr"},
    }
    row = {
        "key": 1, "prompt": "Write.", "instruction_id_list": list(asked),
        "kwargs": list(asked.values()),
    }  # fmt: skip
    hub.push("google/IFEval", {"train.jsonl": (json.dumps(row) + "\n").encode()}, kind="dataset")
    (found,) = benchmark_groups.load(BenchmarkSpec(path="x", name="ifeval"), open_store(), tmp_path).tasks
    (doc,) = found.task.eval_docs
    for answer, followed in (
        ("Je suis content de voir M. Dupont. Il est TRES content, LUI aussi.", [True, True, True]),
        ("We are glad to see Mr. Smith today, and HE is glad too", [False, False, False]),
    ):
        assert found.task.process_results(doc, [answer])["inst_level_strict_acc"] == followed
    with pytest.raises(RuntimeError, match="none is fetched"):
        nltk.download("punkt_tab")


@pytest.mark.parametrize(
    ("name", "reason", "said"),
    [
        ("no-such-task", "BenchmarkMissing", "the benchmark does not exist"),
        ("leaderboard_ifeval", "BenchmarkInvalid", "fetches data of NLTK"),
        ("jsonschema_bench_easy", "BenchmarkInvalid", "jsonschema is not installed"),
        # This task would end the process if a program is not installed.
        ("slr_bench_all", "BenchmarkInvalid", "run as a program"),
        # sympy would parse this task's answers, and its parser evaluates them.
        ("non_greedy_robustness_math_algebra", "BenchmarkInvalid", "parser that evaluates them"),
        ("minerva_math_algebra", "BenchmarkInvalid", "scored by minerva_math/utils"),
        ("mbpp", "BenchmarkInvalid", "found unsafe_code"),
        ("noticia", "BenchmarkInvalid", "program or a model of the Hugging Face Hub"),
        ("polemo2_in", "BenchmarkInvalid", "found metric_list"),
        ("realtoxicityprompts", "BenchmarkInvalid", "a service on the network"),
        # Importing this task's module would run programs.
        ("humaneval", "BenchmarkInvalid", "found unsafe_code"),
    ],
)
def test_a_task_of_the_harness_that_is_not_plain_text_is_refused_with_the_reason(
    tmp_path: Path, name: str, reason: str, said: str
) -> None:
    with pytest.raises(StageError, match=said) as error:
        benchmark_groups.load(BenchmarkSpec(path="x", name=name), open_store(), tmp_path)
    assert error.value.reason == reason
