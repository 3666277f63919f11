"""How well an answer agrees with its reference. Each score is between 0 and 1; pure.

Answers and references are compared as SQuAD's official script compares them (v1.1: lower case, no punctuation, no
articles, single spaces): there is no maintained library with those two scores that does without torch. Rouge-L is
metrax's, which MaxText brings along.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORDS = re.compile(r"\w+")
#: GSM8K's mark before the final answer, and what a number looks like.
_FINAL = re.compile(r"####\s*(\S[^\n]*)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
#: Between these, models that reason write what is not their answer (Qwen3's and DeepSeek R1's templates).
REASONING, _REASONED = "<think>", "</think>"


def without_reasoning(text: str, *, opened: bool = False) -> str:
    """What follows the reasoning in ``text``; empty where the reasoning does not end.

    Args:
        text: an answer or a reference.
        opened: the prompt ends in ``<think>``, so the answer begins with the reasoning.
    """
    _, ended, rest = text.rpartition(_REASONED)
    if REASONING in rest or (opened and not ended):
        return ""
    return rest.strip() if ended else text


def opens_reasoning(prompt: str) -> bool:
    """Whether the prompt for an answer ends in ``<think>``, as the chat template of DeepSeek R1 writes it."""
    return prompt.rstrip().endswith(REASONING)


def normalized(text: str) -> str:
    """As SQuAD's script does."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def final_answer(text: str) -> str | None:
    """What stands after the last ``####`` as GSM8K's solutions end, None without one."""
    found = _FINAL.findall(text)
    return str(found[-1]).strip() if found else None


def exact_match(answer: str, reference: str) -> float:
    """1 where both are the same. Where the reference ends in GSM8K's ``#### 42``, only that is compared, with what
    follows the answer's own ``####`` or, without one, with the answer's last number."""
    wanted = final_answer(reference)
    if wanted is None:
        return float(normalized(answer) == normalized(reference))
    found = final_answer(answer)
    if found is None:
        numbers = _NUMBER.findall(answer)
        found = numbers[-1] if numbers else ""
    return float(_plain(found) == _plain(wanted))


def _plain(answer: str) -> str:
    """A number without currency, separators and trailing zeros; other text normalized."""
    number = _NUMBER.search(answer)
    if number is None:
        return normalized(answer)
    digits = number.group().replace(",", "")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def token_f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall of the words, counted with their repetitions."""
    found, wanted = normalized(answer).split(), normalized(reference).split()
    if not found or not wanted:
        return float(found == wanted)
    common = (Counter(found) & Counter(wanted)).total()
    return 2 * common / (len(found) + len(wanted))


def rouge_l(answer: str, reference: str) -> float:
    """F measure of the longest common subsequence of words, in lower case and without punctuation."""
    from metrax import RougeL  # type: ignore[import-untyped]

    pair = [" ".join(_WORDS.findall(text.lower())) for text in (answer, reference)]
    _, _, measure = RougeL.from_model_output(predictions=pair[:1], references=pair[1:]).compute()
    return float(measure)


#: The API's names -> (short name in ``<dataset>/<metric>``, score).
SCORES: Mapping[str, tuple[str, Callable[[str, str], float]]] = {
    "ExactMatch": ("exact_match", exact_match),
    "TokenF1": ("token_f1", token_f1),
    "RougeL": ("rouge_l", rouge_l),
}


def mean_scores(
    metrics: Sequence[str], answers: Sequence[str], references: Sequence[str]
) -> dict[str, float]:
    """The mean over all rows, by short name, of those ``metrics`` that judge answers."""
    return {
        SCORES[metric][0]: sum(map(SCORES[metric][1], answers, references)) / len(references)
        for metric in metrics
        if metric in SCORES
    }
