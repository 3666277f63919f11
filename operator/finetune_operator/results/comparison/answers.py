"""Compares the answers to the prompts that several runs have in common."""

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from finetune_contract import Sample
from finetune_operator.results.comparison.model import (
    AnswerComparison,
    AnswersCompared,
    Change,
    ChangeKind,
    JobAnswer,
)
from finetune_operator.results.comparison.pairing import in_all

#: Words of an answer up to which differences are marked: the worst case takes time in the third power of it.
_MOST_WORDS = 300
_WORD = re.compile(r"\S+\s*|\s+")


def answers_compared(samples: Mapping[str, Sequence[Sample]], limit: int) -> AnswersCompared | None:
    """Compares the answers of each run with those of the first one.

    Args:
        samples: by label of the run, the reference first.
        limit: number of prompts with different answers that are shown.

    Returns:
        None if fewer than two runs have answers.
    """
    having = {label: each for label, each in samples.items() if each}
    if len(having) < 2:
        return None
    files = list(having.values())
    prompts = [
        tuple(file[place] for file, place in zip(files, places, strict=True))
        for places in in_all(files, [lambda sample: (sample.dataset, sample.prompt)])
    ]
    differing = [each for each in prompts if len({sample.tuned for sample in each}) > 1]
    return AnswersCompared(
        jobs=list(having),
        prompts=len(prompts),
        equal=len(prompts) - len(differing),
        shown=[_comparison(list(having), each) for each in differing[:limit]],
    )


def word_changes(first: str, second: str) -> list[Change] | None:
    """Returns the words of both texts in order; None if one has too many words.

    The texts of SAME and REMOVED form the first text, those of SAME and ADDED the second one, apart from space.
    """
    before, after = _WORD.findall(first), _WORD.findall(second)
    if max(len(before), len(after)) > _MOST_WORDS:
        return None
    matcher = SequenceMatcher(
        None, [word.strip() for word in before], [word.strip() for word in after], False
    )
    changes = []
    for operation, a, b, c, d in matcher.get_opcodes():
        if operation == "equal":
            changes.append(Change(kind=ChangeKind.SAME, text="".join(after[c:d])))
            continue
        if a < b:
            changes.append(Change(kind=ChangeKind.REMOVED, text="".join(before[a:b])))
        if c < d:
            changes.append(Change(kind=ChangeKind.ADDED, text="".join(after[c:d])))
    return changes


def _comparison(labels: Sequence[str], samples: Sequence[Sample]) -> AnswerComparison:
    shown = [sample.shown() for sample in samples]
    first = shown[0]
    return AnswerComparison(
        dataset=first.dataset,
        prompt=first.prompt,
        reference=first.reference,
        baseline=first.baseline,
        answers=[
            JobAnswer(
                job=label,
                text=sample.tuned or "",
                changes=None if sample is first else word_changes(first.tuned or "", sample.tuned or ""),
            )
            for label, sample in zip(labels, shown, strict=True)
        ],
    )
