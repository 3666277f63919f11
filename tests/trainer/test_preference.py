"""Pairs of answers: how rows are read and laid out, how DPO and ORPO compare them, and whole trainings."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from devcluster.fixtures.chat_data import row, write_data
from finetune_contract import DatasetSpec, EvaluatedRow, Outcome
from finetune_trainer.data.dataset import SourceSubset, assemble
from finetune_trainer.data.pairs import PairSchema
from finetune_trainer.data.preference import (
    PreferencePair,
    PreferencePreprocessor,
    split_common_prompt,
)
from finetune_trainer.data.prepare import PreparedSource, prepare
from finetune_trainer.data.schema import Unwanted
from finetune_trainer.errors import StageError
from finetune_trainer.methods import method_of, objectives
from finetune_trainer.methods.base import PreferenceTraining
from finetune_trainer.readers.row_location import Row, RowLocation
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.notes import Note
from finetune_trainer.tokens.template import Renderer
from tests.trainer.models import qwen3
from tests.trainer.requests import method as asked_method
from tests.trainer.stages import Stages
from tests.trainer.test_template import CHATML, tokenizer

USER = {"role": "user", "content": "Capital of Peru?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("Lima.", "No idea."))


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    from transformers import AutoTokenizer

    folder = qwen3(tmp_path_factory.mktemp("model"))
    return Renderer(AutoTokenizer.from_pretrained(folder), train_on_prompt=False)


def spec(**fields: Any) -> DatasetSpec:
    return DatasetSpec.model_validate(
        {"path": "spec.datasets.train[0]", "name": "pairs", "uri": "file:///x", **fields}
    )


def read(value: dict[str, Any], renderer: Renderer, **fields: Any) -> PreferencePair:
    row = Row(place=RowLocation(path="p", file="f", row=1), value=value)
    pair = PairSchema(spec(**fields), row).pair(row)
    assert not isinstance(pair, Unwanted), pair
    return split_common_prompt(*renderer.many(pair))


SAME = {
    "messages": {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    "text": {"prompt": USER["content"], "chosen": GOOD["content"], "rejected": BAD["content"]},
    "whole conversations": {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "prompt repeated": {"prompt": [USER], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "text and messages": {"prompt": USER["content"], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
}


@pytest.mark.parametrize("value", SAME.values(), ids=SAME)
def test_a_pair_is_the_same_however_it_is_written(value: dict[str, Any], renderer: Renderer) -> None:
    pair = read(value, renderer)
    decode = renderer._tokenizer.decode  # type: ignore[attr-defined]
    assert decode(pair.prompt) == "<|im_start|>user\nCapital of Peru?<|im_end|>\n<|im_start|>assistant\n"
    assert decode(pair.chosen) == "Lima.<|im_end|>"
    assert decode(pair.rejected) == "No idea.<|im_end|>"


def test_texts_without_a_prompt_share_their_beginning(renderer: Renderer) -> None:
    pair = read({"chosen": "Q: Peru? A: Lima", "rejected": "Q: Peru? A: Limbo"}, renderer)
    decode = renderer._tokenizer.decode  # type: ignore[attr-defined]
    assert decode(pair.prompt).rstrip().endswith("Q: Peru? A:") or "Q: Peru? A:" in decode(pair.prompt)
    assert decode(pair.chosen).startswith(" Lima") or decode(pair.chosen).startswith("Lima")


def test_columns_and_roles_are_mapped(renderer: Renderer) -> None:
    human = [{"role": "human", "content": USER["content"]}]
    value = {"q": human, "good": [GOOD], "bad": [BAD]}
    columns = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    mapped = read(value, renderer, columns=columns, role_map={"human": "user"})
    assert mapped.chosen.tolist() == read(SAME["messages"], renderer).chosen.tolist()


BROKEN = [
    ({"prompt": "x", "chosen": "y"}, {}, 'there is no column "rejected".*columns: {chosen: …, rejected: …}'),
    ({"prompt": "x", "chosen": "y", "rejected": None}, {}, '"rejected" must be an answer.*found null'),
    ({"chosen": [USER, GOOD], "rejected": [BAD]}, {}, "differ in the last turn"),
    (
        {"prompt": [USER], "chosen": [GOOD, USER, GOOD], "rejected": [BAD]},
        {},
        "one turn of the assistant.*3 messages",
    ),
    ({"prompt": "x", "chosen": 3, "rejected": "y"}, {}, "two strings or two lists"),
    (
        {"prompt": [{"role": "oracle", "content": "x"}], "chosen": [GOOD], "rejected": [BAD]},
        {},
        'role "oracle"',
    ),
    ({}, {"columns": {"completion": "x"}}, "no such column"),
    (
        {"prompt": "x", "chosen": "y", "rejected": "z"},
        {"columns": {"prompt": "promt"}},
        'columns.prompt names "promt"',
    ),
    ({}, {"format": "Messages"}, "pairs of answers"),
]


@pytest.mark.parametrize(("value", "fields", "told"), BROKEN)
def test_rows_that_are_no_pairs_are_refused(
    value: dict[str, Any], fields: dict[str, Any], told: str, renderer: Renderer
) -> None:
    with pytest.raises(StageError, match=told):
        read(value, renderer, **fields)


def test_pairs_are_laid_out_cut_counted_and_dropped(renderer: Renderer, tmp_path: Path) -> None:
    rows = [
        SAME["text"],
        {"prompt": "p", "chosen": "same", "rejected": "same"},
        {"prompt": "a long question " * 9, "chosen": "yes", "rejected": "a long answer " * 9},
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    form = PreferencePreprocessor(renderer=renderer, prompt_length=24, max_length=40, width=48)
    source = prepare(spec(uri=f"file://{path}"), form, open_store(), tmp_path)
    made = assemble("train", [SourceSubset.all_of(source)], form)
    (report,) = made.reports
    assert (report.rows, report.dropped_rows, report.truncated_rows) == (2, 1, 1)
    assert report.drop_reasons == {"both answers are the same": 1}
    batch = made.rows.batch([0, 1], 3)
    assert {name: array.shape for name, array in batch.items()} == {
        f"{name}_{part}": (3, width)
        for name, width in (("prompt", 32), ("chosen", 16), ("rejected", 16))
        for part in ("ids", "mask")
    }
    assert batch["prompt_mask"][0].tolist() == sorted(batch["prompt_mask"][0])  # padded on the left
    assert batch["chosen_mask"][0].tolist() == sorted(batch["chosen_mask"][0], reverse=True)
    assert batch["prompt_mask"][1].sum() == 24  # truncated to its end
    assert (
        batch["prompt_ids"][0][-3:].tolist() == batch["prompt_ids"][1][-3:].tolist()
    )  # the generation prompt
    assert not any(array[2].any() for array in batch.values())


BLANK = ["", " ", "\n\n", "\xa0", "\u200b\ufeff", "<|im_end|>", "<think>\n\n</think>\n\n"]


def prepared_pairs(
    rows: list[dict[str, Any]], of: Renderer, folder: Path, *, prompt: int = 24, length: int = 40
) -> PreparedSource:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    form = PreferencePreprocessor(renderer=of, prompt_length=prompt, max_length=length, width=length)
    return prepare(spec(uri=f"file://{path}"), form, open_store(), folder)


def noted(source: PreparedSource) -> dict[str, list[str]]:
    index = source.index
    return {note: index.said_places(which) for note, which in index.noted(np.arange(len(source))).items()}


@pytest.mark.parametrize("template", [CHATML, None], ids=["ChatML", "no template"])
@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_pair_with_a_blank_answer_is_dropped(template: str | None, side: str, tmp_path: Path) -> None:
    of = Renderer(tokenizer(template), train_on_prompt=False)
    rows = [{**SAME["text"], side: text} for text in BLANK]
    source = prepared_pairs([SAME["text"], *rows], of, tmp_path, prompt=64, length=128)
    assert list(source.index.dropped()) == ["an answer is blank"]
    assert (len(source), len(source.index.said_place)) == (1, len(BLANK))


def test_a_pair_whose_answer_is_blank_after_truncation_is_dropped(renderer: Renderer, tmp_path: Path) -> None:
    late = {"prompt": "p", "chosen": "yes", "rejected": "\n \n " * 40 + "no"}
    source = prepared_pairs([SAME["text"], late], renderer, tmp_path, prompt=32, length=40)
    assert list(source.index.dropped()) == ["an answer is blank within maxSeqLength"]


SYSTEM = {"role": "system", "content": "Answer in French."}
LONG = {"role": "user", "content": "blah " * 40 + "Capital of Peru?"}


def test_truncated_prompts_and_answers_are_counted_apart(renderer: Renderer, tmp_path: Path) -> None:
    pair = {"chosen": [GOOD], "rejected": [BAD]}
    rows = [
        {"prompt": [USER], **pair},
        {"prompt": [LONG], **pair},
        {"prompt": [SYSTEM, LONG], **pair},
        {"prompt": [SYSTEM, USER], **pair, "chosen": [{"role": "assistant", "content": "Lima. " * 40}]},
    ]
    source = prepared_pairs(rows, renderer, tmp_path, prompt=64, length=96)
    assert noted(source) == {
        Note.CUT_PROMPT: ["row 2", "row 3"],
        Note.CUT_SYSTEM: ["row 3"],
        Note.CUT_IN_ANSWER: ["row 4"],
    }


@pytest.mark.parametrize("bos", [True, False])
def test_a_token_that_begins_a_prompt_stays_when_its_beginning_is_cut(bos: bool, tmp_path: Path) -> None:
    of = tokenizer("{{ bos_token }}" + CHATML if bos else CHATML, bos=True)
    source = prepared_pairs(
        [{"prompt": [LONG], "chosen": [GOOD], "rejected": [BAD]}],
        Renderer(of, train_on_prompt=False), tmp_path, prompt=64, length=96,
    )  # fmt: skip
    prompt = PreferencePair.parted(source.tokens.read(0)).prompt
    assert len(prompt) == 64
    assert (prompt[0] == of.bos_token_id) == bos
    assert of.decode(prompt[1:]).endswith("Capital of Peru?<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("length", "expected"), [(1, [4]), (2, [9, 4]), (3, [9, 3, 4]), (9, [9, 1, 2, 3, 4])]
)
def test_a_cut_prompt_has_the_given_length(length: int, expected: list[int]) -> None:
    pair = PreferencePair(prompt=np.asarray([9, 1, 2, 3, 4]), chosen=np.ones(3), rejected=np.ones(5))
    cut = pair.cut(length, 2, 9)
    assert cut.prompt.tolist() == expected
    assert (len(cut.chosen), len(cut.rejected)) == (2, 2)


# --- what is computed ------------------------------------------------------------------------------------------------

MASKS = {
    "chosen_mask": jnp.asarray([[1, 1, 0, 0], [1, 1, 1, 1]]), "rejected_mask": jnp.asarray([[1, 0, 0, 0], [1, 1, 1, 0]]),
}  # fmt: skip
CHOSEN, REJECTED = np.asarray([-3.0, -1.5]), np.asarray([-2.0, -4.5])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_dpo_is_tunixs(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunix.sft.dpo import dpo_trainer

    reference = {
        "reference_chosen": jnp.asarray([-2.0, -2.0]),
        "reference_rejected": jnp.asarray([-2.5, -4.0]),
    }
    monkeypatch.setattr(
        dpo_trainer, "compute_logps", lambda *_, **__: (jnp.asarray(CHOSEN), jnp.asarray(REJECTED))
    )
    example = dpo_trainer.TrainExample(
        input_ids=None, positions=None, attention_mask=None, completion_mask=None, logits_to_keep=4,  # type: ignore[arg-type]
        ref_chosen_logps=reference["reference_chosen"], ref_rejected_logps=reference["reference_rejected"],
    )  # fmt: skip
    expected, told = dpo_trainer.dpo_loss_fn(None, example, beta=0.3, label_smoothing=smoothing)
    ours = method_of(asked_method({"type": "DPO", "beta": 0.3, "label_smoothing": smoothing}))
    assert isinstance(ours, PreferenceTraining)
    losses, better, worse = ours.compare(jnp.asarray(CHOSEN), jnp.asarray(REJECTED), {**MASKS, **reference})
    assert float(losses.mean()) == float(expected)
    assert float((better > worse).mean()) == float(told["rewards/accuracy"])
    assert float((better - worse).mean()) == float(told["rewards/margin"])


@pytest.mark.parametrize("gap", [0.0, 1.0, -1.0, float("nan")])
def test_a_tie_of_rewards_is_half_right(gap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that equals its reference prefers neither answer. A row that only fills the batch counts nothing."""
    answers = jnp.asarray([-3.0, -3.0])
    monkeypatch.setattr(objectives, "log_probabilities", lambda *_: (answers + gap, answers))
    made = method_of(asked_method({"type": "DPO", "beta": 0.3}))
    assert isinstance(made, PreferenceTraining)
    batch = {
        "chosen_mask": jnp.asarray([[1], [0]]), "reference_chosen": answers, "reference_rejected": answers,
    }  # fmt: skip
    expected = {0.0: 0.5, 1.0: 1.0}.get(gap, 0.0)
    assert made.objective(None).parts(None, batch)["reward_accuracy"].tolist() == [expected, 0.0]


def orpo(weight: float) -> PreferenceTraining:
    made = method_of(asked_method({"type": "ORPO", "weight": weight}))
    assert isinstance(made, PreferenceTraining)
    return made


def test_orpo_is_the_papers() -> None:
    """The expected values are equations 1, 4 and 6 of arXiv:2403.07691 in float64."""
    chosen, rejected = CHOSEN / [2, 4], REJECTED / [1, 3]
    odds = [np.exp(nats) / (1 - np.exp(nats)) for nats in (chosen, rejected)]
    expected = -chosen - 0.25 * np.log(1 / (1 + np.exp(-np.log(odds[0] / odds[1]))))
    losses, better, worse = orpo(0.25).compare(jnp.asarray(CHOSEN), jnp.asarray(REJECTED), MASKS)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose(better - worse, 0.25 * (chosen - rejected), rtol=1e-6)


def test_an_answer_that_is_certain_is_not_infinitely_odd() -> None:
    losses, *_ = orpo(0.1).compare(jnp.zeros(2), jnp.asarray(REJECTED), MASKS)
    assert np.isfinite(np.asarray(losses)).all()


DPO = {"type": "DPO", "max_prompt_length": 32}
ORPO = {"type": "ORPO", "max_prompt_length": 32}
LORA = {"lora": {"rank": 4, "alpha": 8.0}}


@pytest.fixture(scope="module")
def pairs(stages: Stages) -> dict[str, Any]:
    folder = stages.root / "data" / "pairs"
    write_data(folder, train=64, evaluation=21, form="preference")
    sources = {
        name: [{"path": f"spec.datasets.{name}[0]", "name": name, "uri": f"file://{folder}/{file}.jsonl"}]
        for name, file in (("train", "train"), ("validation", "eval"))
    }
    assert row("Peru", "preference")["chosen"] == "The capital of Peru is Lima."
    return sources


def asked(pairs: dict[str, Any], converted: str, method: dict[str, Any], **numbers: Any) -> dict[str, Any]:
    return {
        "converted": converted, "data": pairs, "method": method, "checkpointing": {"every_steps": 10},
        "hyperparameters": {"steps": 12, "learning_rate": 2e-3, "schedule": "Constant", **numbers},
        "evaluation": {"prompts": [], "every_steps": 6},
    }  # fmt: skip


@pytest.fixture(scope="module")
def mixture(stages: Stages) -> dict[str, Any]:
    """Two weighted sources of pairs, with rows of both held back."""
    sources = []
    for i, (name, rows, weight) in enumerate((("few", 20, 2.0), ("many", 44, 1.0))):
        folder = stages.root / "data" / f"pairs-{name}"
        write_data(folder, train=rows, form="preference", seed=rows)
        uri = f"file://{folder}/train.jsonl"
        sources.append({"path": f"spec.datasets.train[{i}]", "name": name, "uri": uri, "weight": weight})
    return {"train": sources, "validation": [], "split_from_train": {"fraction": 0.2, "seed": 1}}


def test_a_mixture_of_pairs_is_counted_held_back_from_and_found_again(
    stages: Stages, mixture: dict[str, Any]
) -> None:
    told = [stages.run("Preflight", f"mixture-{n}", data=mixture, method=DPO).details for n in (1, 2)]
    first, again = (details for details in told if details is not None and details.kind == "Preflight")
    few, many = first.train
    held = {report.name: report.rows for report in first.validation}
    assert (few.rows + held["few"], many.rows + held["many"]) == (20, 44)
    assert (few.epoch_sequences, many.epoch_sequences) == (
        round((few.rows + many.rows) * 2 / 3), round((few.rows + many.rows) / 3)
    )  # fmt: skip
    assert [use.result for use in first.prepared] == ["Miss"] * 2
    assert [use.result for use in again.prepared] == ["Hit"] * 2
    sample = (stages.root / "mixture-1/preflight/samples.jsonl").read_text().splitlines()[0]
    assert json.loads(sample)["text"].count("⟦") == 2  # both answers, each after the prompt


def test_preflight_counts_pairs_and_conversion_is_proven_on_them(
    stages: Stages, pairs: dict[str, Any]
) -> None:
    wanted = {"data": pairs, "method": DPO}
    checked = stages.run(
        "Preflight", "preferences", **wanted, hyperparameters={"steps": None, "epochs": 1.0}
    ).details
    assert checked is not None
    assert checked.kind == "Preflight"
    (train,) = checked.train
    assert (train.format, train.rows, checked.steps) == ("Preference", 64, 8)
    assert [each.rows for each in checked.validation] == [21]
    made = stages.run("Convert", "preferences", **wanted, use_cache="Off").details
    assert made is not None
    assert made.kind == "Convert"
    assert made.manifest.export_proven


METHODS = [
    pytest.param("dpo", DPO, id="dpo", marks=pytest.mark.thorough),
    pytest.param("dpo-lora", DPO | LORA, id="dpo-lora"),
    pytest.param("orpo", ORPO, id="orpo", marks=pytest.mark.thorough),
    pytest.param("orpo-lora", ORPO | LORA, id="orpo-lora", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("run", "method"), METHODS)
def test_the_chosen_answers_come_to_be_preferred(
    stages: Stages, converted: str, pairs: dict[str, Any], run: str, method: dict[str, Any]
) -> None:
    wanted = asked(pairs, converted, method)
    trained = stages.run("Train", run, **wanted)
    assert trained.outcome is Outcome.SUCCEEDED, trained.failure
    lines = [
        json.loads(line) for line in (stages.root / run / "train/metrics.jsonl").read_text().splitlines()
    ]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 12
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert "perplexity" not in steps[-1]
    assert steps[-1]["reward_margin"] > 0.01
    assert steps[-1]["reward_accuracy"] == 1.0
    if method["type"] == "DPO":  # before the first update, the model equals its reference
        assert steps[0]["loss"] == pytest.approx(np.log(2), abs=1e-5)
    # some of the rows again, in a dataset of the same name, with a gate
    (same,) = pairs["validation"]
    source = {**same, "path": "spec.evaluation.datasets[0]", "format": "Preference", "max_examples": 10}
    wanted["evaluation"] |= {
        "datasets": [{"source": source, "metrics": ["Loss"]}],
        "gates": [
            {"metric": "validation/reward_accuracy", "op": "GreaterOrEqual", "delta_from_baseline": 0.0}
        ],
    }
    evaluated = stages.run("Evaluate", run, train_step=12, **wanted).details
    assert evaluated is not None
    assert evaluated.kind == "Evaluate"
    assert evaluated.tuned is not None
    assert evaluated.baseline is not None
    assert evaluated.tuned.loss == pytest.approx(trained.details.evaluation_loss, rel=1e-6)  # type: ignore[union-attr]
    assert evaluated.tuned.rows == 21
    assert evaluated.tuned.method_metrics["reward_accuracy"] == 1.0
    assert evaluated.tuned.perplexity is None
    assert evaluated.baseline.loss > evaluated.tuned.loss
    if method["type"] == "DPO":
        assert evaluated.baseline.method_metrics["reward_accuracy"] == 0.5
    (scores,) = evaluated.datasets
    assert scores.rows == 10
    assert scores.tuned.keys() == {"loss", "reward_accuracy", "reward_margin"}
    assert scores.tuned["reward_accuracy"] == 1.0
    assert scores.tuned["loss"] != evaluated.tuned.loss
    assert scores.baseline["loss"] > scores.tuned["loss"]
    assert [gate.passed for gate in evaluated.gates] == [True]
    lines = (stages.root / run / "evaluate/rows.jsonl").read_text().splitlines()
    rows = [EvaluatedRow.model_validate_json(line) for line in lines]
    validation, dataset = rows[:21], rows[21:]
    assert [row.digest for row in dataset] == [row.digest for row in validation[:10]]
    for found, results in ((validation, evaluated.tuned.method_metrics), (dataset, scores.tuned)):
        assert {row.tuned.tokens for row in found} == {1}
        means = {name: np.mean([row.tuned.scores[name] for row in found]) for name in found[0].tuned.scores}
        assert means == pytest.approx({name: results[name] for name in means}, rel=1e-12)
    assert np.mean([row.tuned.loss for row in validation]) == pytest.approx(evaluated.tuned.loss, rel=1e-12)
    exported = stages.run("Export", run, train_step=12, **wanted)
    assert exported.outcome is Outcome.SUCCEEDED, exported.failure


@pytest.mark.thorough
@pytest.mark.parametrize(("run", "method"), [("dpo", DPO), ("orpo", ORPO | LORA)])
def test_a_stopped_training_continues_to_the_same_digits(
    stages: Stages, converted: str, mixture: dict[str, Any], run: str, method: dict[str, Any]
) -> None:
    """The training has a mixture and accumulation.

    The reference is the model at the beginning and not that of the checkpoint, also for validation rows, whose batches
    are smaller than those of a step.
    """
    long = asked(mixture, converted, method, steps=40, gradient_accumulation_steps=4)
    long |= {"evaluation": {"prompts": []}}
    stages.run("Train", f"{run}-whole", **long)
    first = stages.run("Train", f"{run}-stopped", stop_at=8, **long)
    second = stages.run("Train", f"{run}-stopped", attempt=2, **long)
    assert first.outcome is Outcome.STOPPED
    assert second.outcome is Outcome.SUCCEEDED
    assert stages.losses(f"{run}-stopped") == stages.losses(f"{run}-whole")
