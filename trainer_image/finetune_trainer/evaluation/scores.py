"""Scores that compare an answer with its reference. Each score is between 0 and 1. Pure.

Exact match and F1 compare texts as SQuAD's official script (v1.1) does: lower case, no punctuation, no articles, single
spaces. No maintained library provides these two scores without torch. Rouge-L is from metrax, a dependency of MaxText.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORDS = re.compile(r"\w+")
#: GSM8K's marker of the final answer, and the pattern of a number.
_FINAL = re.compile(r"####\s*(\S[^\n]*)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
#: Markers between which reasoning models write text that is not part of the answer (Qwen3 and DeepSeek R1).
REASONING, _REASONED = "<think>", "</think>"


def without_reasoning(text: str, *, opened: bool = False) -> str:
    """Returns the text after the reasoning in ``text``; empty if the reasoning does not end.

    Args:
        text: An answer or a reference.
        opened: Whether the prompt ends with ``<think>``, so that the answer begins with reasoning.
    """
    _, ended, rest = text.rpartition(_REASONED)
    if REASONING in rest or (opened and not ended):
        return ""
    return rest.strip() if ended else text


def opens_reasoning(prompt: str) -> bool:
    """Whether a prompt ends with ``<think>``, as those of DeepSeek R1's chat template do."""
    return prompt.rstrip().endswith(REASONING)


def normalized(text: str) -> str:
    """Returns the text normalized as in SQuAD's script."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def final_answer(text: str) -> str | None:
    """Returns the text after the last ``####``, with which GSM8K's solutions end; None if there is none."""
    found = _FINAL.findall(text)
    return str(found[-1]).strip() if found else None


def exact_match(answer: str, reference: str) -> float:
    """Returns 1 if the normalized texts are equal, else 0.

    If the reference has a GSM8K final answer (``#### 42``), only that is compared: with the text after the answer's own
    ``####`` or, if there is none, with the answer's last number.
    """
    wanted = final_answer(reference)
    if wanted is None:
        return float(normalized(answer) == normalized(reference))
    found = final_answer(answer)
    if found is None:
        numbers = _NUMBER.findall(answer)
        found = numbers[-1] if numbers else ""
    return float(_plain(found) == _plain(wanted))


def _plain(answer: str) -> str:
    """Returns the text's number without currency, separators and trailing zeros; the normalized text if it has none."""
    number = _NUMBER.search(answer)
    if number is None:
        return normalized(answer)
    digits = number.group().replace(",", "")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def token_f1(answer: str, reference: str) -> float:
    """Returns the harmonic mean of precision and recall of the words, including repetitions."""
    found, wanted = normalized(answer).split(), normalized(reference).split()
    if not found or not wanted:
        return float(found == wanted)
    common = (Counter(found) & Counter(wanted)).total()
    return 2 * common / (len(found) + len(wanted))


def rouge_l(answer: str, reference: str) -> float:
    """Returns the F measure of the longest common subsequence of words, in lower case and without punctuation."""
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


def row_scores(
    metrics: Sequence[str], answers: Sequence[str], references: Sequence[str]
) -> dict[str, list[float]]:
    """Returns the score of each row, by short name, of those ``metrics`` that score answers."""
    return {
        SCORES[metric][0]: list(map(SCORES[metric][1], answers, references))
        for metric in metrics
        if metric in SCORES
    }
