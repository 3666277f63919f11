"""Which metrics two runs measure in the same way, by the settings of their evaluations."""

import re
from collections.abc import Iterator

from finetune_contract import StageRequest
from finetune_contract.method import PreferenceMethod
from finetune_operator.results.comparison.model import Direction
from finetune_operator.results.records import RunRecords

#: A commit, or a digest over files: equal ones mean equal models.
_CONTENT = re.compile(r"(sha256:)?[0-9a-f]{40,64}")
#: Scores of generated answers to the questions of evaluation.datasets.
_ANSWER_SCORES = frozenset({"exact_match", "token_f1", "rouge_l"})
#: Metrics of preference pairs that depend on the method's own settings.
_METHOD_SCORES = frozenset({"reward_accuracy", "reward_margin"})
#: Metrics by their name without set and filter; docs/evaluation.md lists them. Others may be of a benchmark of which
#: nothing is known.
_LOWER = frozenset(
    {"loss", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "brier_score", "ter"}
)
_HIGHER = (
    _ANSWER_SCORES
    | _METHOD_SCORES
    | {"acc", "acc_norm", "acc_bytes", "acc_mutual_info", "f1", "mcc", "likelihood", "bleu", "chrf", "chrf++"}
)


def short_name(metric: str) -> str:
    """Returns a metric's name without its set and filter: ``exact_match`` of ``gsm8k/exact_match,strict-match``."""
    return metric.rpartition("/")[2].partition(",")[0]


def direction_of(metric: str) -> Direction:
    """Returns whether lower or higher values are better."""
    name = short_name(metric)
    if name in _LOWER:
        return Direction.LOWER
    return Direction.HIGHER if name in _HIGHER else Direction.UNKNOWN


def why_not_comparable(
    first: RunRecords, second: RunRecords, metric: str, *, pairs: bool, benchmark: bool
) -> str | None:
    """Returns why two runs do not measure a metric in the same way; None if they do.

    Args:
        first: the reference.
        second: another run.
        metric: name of the metric.
        pairs: whether the rows are preference pairs.
        benchmark: whether the rows are a benchmark's, whose task determines the generation.
    """
    a, b, name = first.request, second.request, short_name(metric)
    if a is None or b is None:
        return None
    if pairs and (name == "loss" or name in _METHOD_SCORES):
        if (before := _objective(a)) != (after := _objective(b)):
            return f"the methods compute it differently: {before}, {after}"
        if a.method.reference and (before := _base_model(first)) != (after := _base_model(second)):
            return f"it is relative to different reference models: {before}, {after}"
    elif name in _ANSWER_SCORES and not benchmark and (differing := list(_generation(a, b))):
        return f"answers are generated with different settings: {', '.join(differing)}"
    return None


def _generation(a: StageRequest, b: StageRequest) -> Iterator[str]:
    for path, before, after in (
        ("maxNewTokens", a.evaluation.max_new_tokens, b.evaluation.max_new_tokens),
        ("temperature", a.evaluation.temperature, b.evaluation.temperature),
        ("topK", a.evaluation.top_k, b.evaluation.top_k),
    ):
        # topK has no effect on greedy decoding.
        greedy = path == "topK" and not (a.evaluation.temperature or b.evaluation.temperature)
        if before != after and not greedy:
            yield f"evaluation.generation.{path} {before} and {after}"


def _base_model(run: RunRecords) -> str:
    """Returns what identifies the model that training starts from: repository and commit, or the digest of a folder.

    A folder's address counts only without a digest: a folder and its copy are one model.
    """
    model = run.request.model if run.request else None
    address = model.address if model else ""
    revision = (model.hugging_face.revision if model.hugging_face else model.digest or "") if model else ""
    if not _CONTENT.fullmatch(revision) and run.preflight:
        address, revision = run.preflight.model.source, run.preflight.model.revision
    if "://" in address and _CONTENT.fullmatch(revision):
        return revision
    return f"{address[:64]} at {revision[:64]}" if revision else address[:64]


def _objective(request: StageRequest) -> str:
    """Returns the loss of preference pairs, as text; the name alone of a method that compares no pairs."""
    method = request.method
    if not isinstance(method, PreferenceMethod):
        return method.type
    # Neither changes how the loss of given pairs is computed.
    others = {"type", "lora", "max_prompt_length"}
    settings = [f"{name} {value}" for name, value in method.model_dump().items() if name not in others]
    return f"{method.type} ({', '.join(settings)})"
