"""The context that stages share: the model's plan, and what it reports about the request."""

import logging
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from devcluster.fixtures.chat_data import write_data
from finetune_contract import OWN_TEMPLATE, ExitCode, Stage
from finetune_trainer.errors import StageError
from finetune_trainer.export.tokenizer import tokenizer_folder
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stopping import ImmediateStop
from finetune_trainer.stages import preflight
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.tokenizer import load_tokenizer
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    """Returns preflight's context with ``maxSeqLength: 64`` for a model with a context of 24 tokens."""
    write_model(tmp_path / "models/qwen3", TinyModelSpec(context=24))
    write_data(tmp_path / "data", train=12, evaluation=4)
    return StageContext(
        request=request(tmp_path, "Preflight"),
        store=open_store(),
        processes=Processes(count=1, index=0),
        stopper=ImmediateStop(),
        scratch=tmp_path,
    )


def test_sequences_are_no_longer_than_the_model_takes_and_the_log_says_so(
    context: StageContext, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        context.plan(context.model(weights=False))
    assert "maxSeqLength is lowered from 64 to 24 tokens" in caplog.text
    assert context.training_data().rows.length == 24


def test_preflight_reports_the_lowered_length_and_the_rows_it_cuts(context: StageContext) -> None:
    found = preflight.run(context)
    assert found.max_seq_length == 24
    assert found.train[0].truncated_rows == found.train[0].rows == 12
    assert found.to_json().encode() == context.store.read(context.folder.preflight_report)


def test_a_config_that_transformers_itself_refuses_is_the_users_to_correct(context: StageContext) -> None:
    write_model(
        context.scratch / "models/qwen3", TinyModelSpec(family="llama", hidden=64, heads=3, kv_heads=1)
    )
    with pytest.raises(StageError, match=r"hidden size \(64\) is not a multiple") as caught:
        preflight.run(context)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "InvalidModelConfig")


def test_a_length_within_the_models_limit_stays(
    context: StageContext, caplog: pytest.LogCaptureFixture
) -> None:
    data = context.request.data.model_copy(update={"max_seq_length": 20})
    context.request = context.request.model_copy(update={"data": data})
    assert preflight.run(context).max_seq_length == 20
    assert "lowered" not in caplog.text


def asked(context: StageContext, length: int) -> StageContext:
    """Returns the context with a length that the job sets itself."""
    data = context.request.data.model_copy(update={"max_seq_length": length, "max_seq_length_explicit": True})
    context.request = context.request.model_copy(update={"data": data})
    return context


def test_a_length_that_the_job_asks_for_is_never_lowered_without_a_word(context: StageContext) -> None:
    with pytest.raises(StageError) as caught:
        preflight.run(asked(context, 25))
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "SequenceTooLong")
    for told in (
        "spec.datasets.maxSeqLength",
        "found 25 tokens",
        "at most 24, the max_position_embeddings of",
        "Set it to 24",
    ):
        assert told in str(caught.value)
    assert preflight.run(asked(context, 24)).max_seq_length == 24


@pytest.mark.parametrize("stage", [each for each in Stage if each is not Stage.PREFLIGHT])
def test_what_preflight_let_through_no_later_stage_refuses(context: StageContext, stage: Stage) -> None:
    context.request = asked(context, 64).request.model_copy(update={"stage": stage})
    context.plan(context.model(weights=False))
    assert context.request.data.max_seq_length == 24


def test_a_template_that_includes_the_tokenizers_own_is_complete_in_the_export(
    context: StageContext, tmp_path: Path
) -> None:
    prelude = "{%- set messages = messages[:1] %}\n"
    model = context.model(weights=False)
    own = load_tokenizer(model).chat_template
    data = context.request.data.model_copy(update={"chat_template": prelude + OWN_TEMPLATE})
    context.request = context.request.model_copy(update={"data": data})
    exported = tokenizer_folder(model, context.tokenizer, context.chat_template, tmp_path / "exported")
    assert AutoTokenizer.from_pretrained(exported).chat_template == prelude + own
