"""The context that every stage runs in, and steps that several stages share."""

import logging
import os
import secrets
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from finetune_contract import (
    CacheLayout,
    DatasetSpec,
    EvaluationDatasetSpec,
    ExitCode,
    PreferenceMethod,
    RunFolder,
    Stage,
    StageRequest,
)
from finetune_trainer import families
from finetune_trainer.data import special_tokens
from finetune_trainer.data.cache import DataCache
from finetune_trainer.data.dataset import (
    HELD_BACK,
    Dataset,
    SourceSubset,
    assemble,
    first_occurrences,
    split_validation,
)
from finetune_trainer.data.layout import SequenceLayout
from finetune_trainer.data.preference import PreferencePreprocessor
from finetune_trainer.data.prepare import PreparedSource, TextPreprocessor, prepare
from finetune_trainer.engine import widths
from finetune_trainer.engine.compilation_counter import CompilationCounter
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.families.catalogue import require_family
from finetune_trainer.hub import models
from finetune_trainer.hub.models import LocalModel
from finetune_trainer.methods import method_of
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stage_progress import SILENT, StageProgressReporter
from finetune_trainer.process.stopping import StopSignal
from finetune_trainer.storage import StorageClient
from finetune_trainer.tokens.template import Renderer, with_template
from finetune_trainer.tokens.tokenizer import load_tokenizer
from finetune_trainer.training.report import HostProgressReporter

_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True)
class StageContext:
    """One stage of one request in this process."""

    request: StageRequest
    store: StorageClient
    processes: Processes
    stopper: StopSignal
    compilations: CompilationCounter = field(default_factory=CompilationCounter)
    """Compilations of this process, where they are counted."""
    host_report: HostProgressReporter | None = None
    """None unless several processes train."""
    progress: StageProgressReporter = SILENT
    """Reports what the stage is doing. Only process 0 reports."""
    scratch: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="finetune-")))
    _vocab_size: int | None = field(default=None, init=False)
    """The model's vocabulary size; None until its plan is made."""
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    """Distinguishes this process from others that run the same attempt, so that their writes to the cache do not mix.
    """

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.request.run_folder)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def model(self, *, weights: bool, values: models.Values = "All", heads: bool = False) -> LocalModel:
        """The user's model on this machine: configuration, tokenizer, and if ``weights`` the weights.

        Of the weights' tensors, at least ``values`` are fetched; ``heads``: see ``models.fetch_model``.
        """
        return models.fetch_model(
            self.request.model,
            self.scratch,
            self.store,
            weights=weights,
            values=values,
            heads=heads,
            fetched=lambda size: self.progress.advance(0, size),
        )

    def plan(self, model: LocalModel) -> ModelPlan:
        """The plan that the model's config.json determines.

        From here on the request's sequences are no longer than the model's context length: a default is lowered to it,
        and preflight refuses a longer value in the job. Raises ``StageError`` 64 or 66.
        """
        plan = families.read(model.path, where=model.source)
        if self.request.model.maxtext_model is not None:
            require_family(self.request.model.maxtext_model, plan)
        self._vocab_size = plan.vocab_size
        data = self.request.data
        if data.max_seq_length > plan.context_length:
            if data.max_seq_length_explicit and self.request.stage is Stage.PREFLIGHT:
                raise StageError(
                    ExitCode.BAD_REQUEST, "SequenceTooLong", "the sequences are longer than the model's own limit",
                    where="spec.datasets.maxSeqLength", actual=f"{data.max_seq_length} tokens",
                    expected=f"at most {plan.context_length}, the {plan.context_field} of {model.source}/config.json",
                    fix=f"Set it to {plan.context_length} or less, or use a model with a longer context.",
                )  # fmt: skip
            _LOG.warning(
                "datasets.maxSeqLength is lowered from %d to %d tokens, the model's own limit",
                data.max_seq_length, plan.context_length,
            )  # fmt: skip
            lowered = data.model_copy(update={"max_seq_length": plan.context_length})
            self.request = self.request.model_copy(update={"data": lowered})
        return plan

    @cached_property
    def tokenizer(self) -> Any:
        tokenizer = load_tokenizer(self.model(weights=False))
        if self.request.data.chat_template is not None:
            with_template(tokenizer, self.request.data.chat_template)
        return tokenizer

    @property
    def chat_template(self) -> str | None:
        """The job's chat template, complete with what it includes; None if the tokenizer's own is used."""
        return None if self.request.data.chat_template is None else str(self.tokenizer.chat_template)

    @cached_property
    def renderer(self) -> Renderer:
        data = self.request.data
        return Renderer(
            self.tokenizer,
            train_on_prompt=method_of(self.request.method).trains_on_prompt,
            arguments=data.chat_template_arguments,
            today=data.chat_template_date or self.now().date(),
        )

    def training_data(self) -> Dataset:
        """The training sources' dataset, without the rows that are held back."""
        return self._assembled("train", self._training_pieces[0], pairs=self._compares)

    def validation_data(self) -> list[Dataset]:
        """The validation sets, separately; empty if none was requested."""
        _, held_back = self._training_pieces if self.request.data.split_from_train else ([], [])
        if held_back:
            return [self._assembled(HELD_BACK, held_back, pairs=self._compares)]
        return [self.dataset(source.name, [source]) for source in self.request.data.validation]

    def dataset(self, name: str, sources: Sequence[DatasetSpec], *, use_cache: bool = True) -> Dataset:
        """The sources' dataset: pairs of answers if the method compares them, else texts."""
        return self._dataset(name, sources, pairs=self._compares, use_cache=use_cache)

    def evaluation_data(self, dataset: EvaluationDatasetSpec) -> Dataset:
        """One of evaluation.datasets: texts, unless its spec says that it holds pairs, whatever the method compares."""
        return self._dataset(dataset.source.name, [dataset.source], pairs=dataset.pairs)

    def trained_ends(self, data: Dataset) -> list[int]:
        """The tokens with which training on ``data`` teaches answers to end, those of most answers first."""
        method, limit = self.request.method, self.request.data.max_seq_length
        if isinstance(method, PreferenceMethod):
            limit -= method.max_prompt_length
        return special_tokens.trained_ends(
            data, self.renderer, self.tokenizer, limit=limit, pairs=self._compares
        )

    def end_ids(self, counted: Collection[int] | None) -> frozenset[int]:
        """The tokens at which generation stops: those of the chat template, and those that training teaches.

        ``counted`` are the latter (:meth:`trained_ends`); None if they were not counted.
        """
        return self.renderer.end_ids() | frozenset(counted or ())

    @property
    def _compares(self) -> bool:
        return isinstance(self.request.method, PreferenceMethod)

    def _dataset(
        self, name: str, sources: Sequence[DatasetSpec], *, pairs: bool, use_cache: bool = True
    ) -> Dataset:
        pieces = [
            SourceSubset.all_of(self._prepared(source, pairs=pairs, use_cache=use_cache))
            for source in sources
        ]
        return self._assembled(name, pieces, pairs=pairs)

    @cached_property
    def _training_pieces(self) -> tuple[list[SourceSubset], list[SourceSubset]]:
        data = self.request.data
        pieces = [SourceSubset.all_of(self._prepared(source, pairs=self._compares)) for source in data.train]
        if data.dedupe == "Exact":
            pieces = first_occurrences(pieces)
        return split_validation(pieces, data.split_from_train) if data.split_from_train else (pieces, [])

    def _assembled(self, name: str, pieces: list[SourceSubset], *, pairs: bool) -> Dataset:
        texts = SequenceLayout(length=widths.of_rows(self.request), packing=self.request.data.packing)
        return assemble(name, pieces, self._pairs if pairs else texts)

    @property
    def _pairs(self) -> PreferencePreprocessor:
        method = self.request.method
        assert isinstance(method, PreferenceMethod), (
            "the contract allows pairs only with a method that compares them"
        )
        return PreferencePreprocessor(
            renderer=self.renderer,
            prompt_length=method.max_prompt_length,
            max_length=self.request.data.max_seq_length,
            width=widths.of_rows(self.request),
            read=self.progress.advance,
        )

    def _prepared(self, source: DatasetSpec, *, pairs: bool, use_cache: bool = True) -> PreparedSource:
        """The source's examples, from the cache if they are there."""
        length = self.request.data.max_seq_length
        texts = TextPreprocessor(renderer=self.renderer, max_length=length, read=self.progress.advance)
        self.progress.begin(f"reading the rows of {source.path}", unit="rows")
        prepared = prepare(
            source,
            self._pairs if pairs else texts,
            self.store,
            self.scratch,
            cache=self._data_cache() if use_cache else None,
        )
        if self._vocab_size is not None:
            special_tokens.require_known(prepared, self.tokenizer, self._vocab_size)
        return prepared

    def _data_cache(self) -> DataCache | None:
        request = self.request
        if request.use_cache == "Off":
            return None
        # What preflight has refreshed is fresh for later stages. These need no permission to write to the cache:
        # entries that they miss (damaged since) they prepare again for themselves.
        refresh = request.use_cache == "Refresh" and request.stage is Stage.PREFLIGHT
        return DataCache(
            store=self.store,
            layout=CacheLayout(request.cache),
            scratch=self.scratch,
            reads=not refresh,
            writes=self.processes.first and request.stage is Stage.PREFLIGHT,
            replaces=refresh,
            uid=request.job.uid,
            attempt=request.attempt,
            restart=request.restart,
            run=self.run,
        )


def late_environment(environment: Mapping[str, str]) -> None:
    """Applies variables that JAX and tempfile read only at import time: a forked process gets its own later."""
    import jax

    if platforms := environment.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", platforms)
    if cache := environment.get("JAX_COMPILATION_CACHE_DIR"):
        if "://" not in cache:  # addresses are handled by finetune_trainer.engine.compilation_cache
            jax.config.update("jax_compilation_cache_dir", cache)
        # Every program counts: a stage has some twenty small ones, and on a slice each costs a compilation.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    tempfile.tempdir = None
    os.environ.setdefault("HF_DATASETS_DISABLE_DILL", "1")
