"""Rejects benchmark tasks that would run code other than the harness itself.

A folder's YAML may contain only the keys, metrics, aggregations and filters listed below, which the pinned harness
implements itself. The harness's own tasks may name the harness's functions, except those that run a model's answers as
code or download what they compute with. As a last safeguard, ``evaluate.load`` always raises.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import evaluate
from lm_eval import tasks

from finetune_contract import BenchmarkSpec, ExitCode
from finetune_trainer.errors import StageError

METRICS = frozenset({
    "acc", "acc_all", "acc_bytes", "acc_mutual_info", "acc_norm", "bits_per_byte", "bleu", "brier_score", "bypass",
    "byte_perplexity", "chrf", "chrf++", "exact_match", "f1", "likelihood", "mcc", "perplexity", "ter",
    "word_perplexity",
})  # fmt: skip
AGGREGATIONS = frozenset({
    "bits_per_byte", "bleu", "brier_score", "bypass", "chrf", "chrf++", "f1", "matthews_corrcoef", "mean", "median",
    "nanmean", "perplexity", "ter", "weighted_perplexity",
})  # fmt: skip
#: All of the harness's filters except "custom", which calls a function, and "decontaminate", which is unfinished.
FILTERS = frozenset({
    "format_span", "lowercase", "majority_vote", "map", "multi_choice_regex", "regex", "regex_pos",
    "remove_whitespace", "take_first", "take_first_k", "uppercase",
})  # fmt: skip

_TEXTS = {
    "doc_to_choice",
    "doc_to_target",
    "doc_to_text",
    "fewshot_delimiter",
    "gen_prefix",
    "target_delimiter",
}
#: Keys of a task: the harness's keys except those that call a function or another task (``class``,
#: ``custom_dataset``, ``process_docs``, ``process_results``), read another file (``include``, ``use_prompt``), run
#: answers (``unsafe_code``), or prompt with more than text (``doc_to_image``, ``doc_to_audio``).
KEYS = frozenset(_TEXTS | {
    "dataset_kwargs", "dataset_name", "dataset_path", "description", "doc_to_decontamination_query", "fewshot_config",
    "fewshot_split", "filter_list", "generation_kwargs", "metadata", "metric_list", "num_fewshot", "output_type",
    "repeats", "should_decontaminate", "tag", "task", "task_alias", "test_split", "training_split",
    "validation_split",
})  # fmt: skip
_FEWSHOT = frozenset(_TEXTS | {"fewshot_indices", "sampler", "samples", "split"})
#: Keys of a metric; only exact_match has further options.
_METRIC = frozenset({"metric", "aggregation", "higher_is_better"})
_OPTIONS = {"exact_match": {"ignore_case", "ignore_numbers", "ignore_punctuation", "regexes_to_ignore"}}
#: Options of ``datasets`` for reading a plain file.
_READING = frozenset({
    "column_names", "columns", "data_files", "delimiter", "encoding", "field", "header", "keep_linebreaks", "names",
    "quotechar", "sample_by", "sep", "skiprows",
})  # fmt: skip
_LOADS = "it is scored by a program or a model of the Hugging Face Hub without a pinned revision"
#: Keys of the harness's own tasks, which may also call the harness's functions.
_OWN_KEYS = KEYS | {"process_docs", "process_results"}

#: Reason why tasks of the harness are rejected -> the functions, or whole modules, that their YAML names. A test
#: searches the code of the pinned harness for others.
_REFUSED_CODE = {
    "the model's answers are run as a program, or read by a parser that evaluates them": (
        "cruxeval/utils", "humaneval/utils", "humaneval_infilling/utils", "leaderboard/math/utils",
        "longproc/metrics", "mbpp/utils", "minerva_math/utils", "putnam_axiom/utils", "score/math/utils_math",
        "slr_bench/lm_eval_slr_bench",
    ),
    _LOADS: (
        "afrobench/xlsum/prompt_1/utils.rougeL_agg", "afrobench/xlsum/prompt_2/utils.rougeL_agg",
        "afrobench/xlsum/prompt_3/utils.rougeL_agg", "basqueglue/utils.micro_f1_score",
        "basqueglue/utils.vaxx_f1_score", "careqa/utils_open", "catalan_bench/utils.rouge1_agg",
        "cnn_dailymail/utils", "darija_bench/darija_translation/utils.arabert",
        "darija_bench/darija_translation/utils.bertbase", "darija_bench/darija_translation/utils.camembert",
        "darija_bench/darija_translation/utils.darijabert", "darija_bench/darija_translation/utils.mbert",
        "darija_bench/darija_transliteration/utils.arabizibert",
        "darija_bench/darija_transliteration/utils.darijabert", "darija_bench/darija_transliteration/utils.mbert",
        "evalita_llm/sum_utils", "french_bench/utils.rouge1_agg", "galician_bench/utils.rouge1_agg",
        "meddialog/utils", "meddialog/utils_perplexity", "mediqa_qa2019/utils", "mediqa_qa2019/utils_perplexity",
        "medtext/utils", "medtext/utils_perplexity", "meqsum/utils", "mimic_repsum/utils",
        "mimic_repsum/utils_perplexity", "mts_dialog/utils", "mts_dialog/utils_perplexity", "noreval/norsumm/utils",
        "noticia/utils.rouge1_agg", "olaph/utils", "olaph/utils_perplexity", "spanish_bench/utils.rouge1_agg",
    ),
    "it fetches data of NLTK without a pinned revision": ("leaderboard/ifeval/utils", "nerel-bench/utils"),
    "it calls a service on the network": ("realtoxicityprompts/metric",),
}  # fmt: skip
_ROOT = Path(tasks.__file__).resolve().parent


class LoadRefusedError(RuntimeError):
    """Raised by ``evaluate.load`` after :func:`refuse_loading`."""


def _refuse_load(*asked: Any, **_options: Any) -> NoReturn:
    raise LoadRefusedError(f"evaluate.load fetches a program and runs it, which is not allowed: {asked[:1]}")


def refuse_loading() -> None:
    """Prevents this process from downloading or running a metric's code.

    Replaces the loading functions of ``evaluate``. ``datasets`` no longer has ``load_metric``.
    """
    refused = {evaluate.loading.load, evaluate.loading.evaluation_module_factory} - {_refuse_load}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "evaluate":
            for key, value in list(vars(module).items()):
                if callable(value) and value in refused:
                    setattr(module, key, _refuse_load)


def require_plain(spec: BenchmarkSpec, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a folder's task, as read from plain YAML, without unlisted keys, which may only be null or false.

    Raises ``StageError`` 65 for anything that is not on the lists.
    """
    _require_keys(spec, config, KEYS, "")
    for key, allowed in (("dataset_kwargs", _READING), ("fewshot_config", _FEWSHOT)):
        _require_keys(spec, _mapping(spec, config.get(key) or {}, key), allowed, f"{key}.")
    for key, metric in _entries(spec, config.get("metric_list"), "metric_list"):
        name = str(metric.get("metric"))
        if name not in METRICS:
            raise _not_listed(spec, "the harness has no such metric", key, name, METRICS)
        _require_keys(spec, metric, _METRIC | _OPTIONS.get(name, set()), f"{key}.")
        aggregation = str(metric.get("aggregation", "mean"))
        if aggregation not in AGGREGATIONS:
            raise _not_listed(
                spec, "the harness has no such aggregation", f"{key}.aggregation", aggregation, AGGREGATIONS
            )
    for key, pipeline in _entries(spec, config.get("filter_list"), "filter_list"):
        for step, function in _entries(spec, pipeline.get("filter"), f"{key}.filter"):
            called = str(function.get("function"))
            if called not in FILTERS:
                raise _not_listed(spec, "the harness has no such filter", f"{step}.function", called, FILTERS)
    kept = {key: value for key, value in config.items() if key in KEYS}
    if metrics := config.get("metric_list"):
        kept["metric_list"] = [_without_evaluate(metric) for metric in metrics]
    return kept


def require_known(spec: BenchmarkSpec, config: Mapping[str, Any]) -> None:
    """Checks one of the harness's own tasks before its functions are imported.

    ``config`` names functions by file and name, as ``load_yaml`` returns them unresolved. Raises ``StageError`` 65 if
    the task needs more than the harness's own code on texts.
    """
    if unknown := _unknown(config, _OWN_KEYS):
        raise invalid(
            spec, "it runs its answers as programs, generates its rows by a program, or does not consist of text alone",
            actual=", ".join(unknown), expected="a task of text only", fix="Remove it.",
        )  # fmt: skip
    for place in functions(config):
        for why, code in _REFUSED_CODE.items():
            if any(place == each or place.startswith(f"{each}.") for each in code):
                raise invalid(
                    spec, why, actual=f"{spec.name} of lm-evaluation-harness, scored by {place}",
                    expected="a task whose answers are compared as texts", fix="Remove it.",
                )  # fmt: skip
    # Other tasks never call their metrics: their scores come from process_results or from log-probabilities.
    if (
        config.get("process_results") is None
        and config.get("output_type", "generate_until") == "generate_until"
    ):
        for key, metric in _entries(spec, config.get("metric_list"), "metric_list"):
            name = str(metric.get("metric"))
            if metric.get("hf_evaluate") or (name not in METRICS and not any(functions(name))):
                raise invalid(
                    spec, _LOADS, actual=f"{key}: {name} of evaluate.load", fix="Remove it.",
                    expected="a metric that the harness computes itself",
                )  # fmt: skip


def without_evaluate(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the task with all metrics taken from the harness instead of ``evaluate``.

    For metrics that it does not call, the harness needs only the names.
    """
    metrics = config.get("metric_list")
    return {**config, **({"metric_list": [_without_evaluate(each) for each in metrics]} if metrics else {})}


def invalid(
    spec: BenchmarkSpec, what: str, *, actual: str, expected: str = "", fix: str = "Correct the task."
) -> StageError:
    """Returns the error (65) for a benchmark that cannot be used."""
    return StageError(
        ExitCode.BAD_DATA, "BenchmarkInvalid", what, where=spec.path, actual=" ".join(actual.split())[:300],
        expected=expected, fix=fix,
    )  # fmt: skip


def _without_evaluate(metric: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metric.items() if key != "hf_evaluate"}


def _require_keys(
    spec: BenchmarkSpec, config: Mapping[Any, Any], allowed: frozenset[str], prefix: str
) -> None:
    if unknown := _unknown(config, allowed):
        raise invalid(
            spec, "a task may not run code or read anything outside of the folder",
            actual=", ".join(f"{prefix}{key}" for key in unknown), expected=f"some of {', '.join(sorted(allowed))}",
            fix="Write the task in one file, without these keys.",
        )  # fmt: skip


def _unknown(config: Mapping[Any, Any], allowed: frozenset[str]) -> list[str]:
    """Returns the keys that are not allowed, except those whose value is null or false, which have no effect."""
    return [str(key) for key, value in config.items() if key not in allowed and value not in (None, False)]


def _entries(spec: BenchmarkSpec, found: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each entry of a list of mappings with its path in the YAML."""
    if not isinstance(found, list | None):
        raise invalid(spec, f"{key} is not a list", actual=str(found))
    for i, each in enumerate(found or ()):
        yield f"{key}[{i}]", _mapping(spec, each, f"{key}[{i}]")


def _mapping(spec: BenchmarkSpec, found: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise invalid(spec, f"{key} is not a mapping", actual=str(found))
    return found


def _not_listed(spec: BenchmarkSpec, what: str, key: str, actual: str, known: frozenset[str]) -> StageError:
    return invalid(spec, what, actual=f"{key}: {actual}", expected=f"one of {', '.join(sorted(known))}")


def functions(found: Any) -> Iterator[str]:
    """Yields the functions named in an unresolved task as ``folder/module.function``, below the harness's tasks."""
    if isinstance(found, Mapping):
        found = list(found.values())
    if isinstance(found, list):
        for each in found:
            yield from functions(each)
    elif isinstance(found, str) and found.startswith(f"{_ROOT}/"):
        yield found.removeprefix(f"{_ROOT}/")
