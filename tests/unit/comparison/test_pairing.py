"""Rows of several runs correspond by kind, digest and order."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import EvaluatedRow
from finetune_operator.results.comparison.pairing import common_rows
from finetune_operator.results.errors import NotComparableError
from tests.unit.comparison.runs import row

contents = st.lists(
    st.tuples(st.sampled_from(["Validation", "Dataset"]), st.sampled_from(["a", "b"]), st.integers(0, 4)),
    max_size=20,
)


def made(keys: list[tuple[str, str, int]], first: float = 0.0) -> list[EvaluatedRow]:
    return [
        row(content, first + at, kind=kind, name=name)  # type: ignore[arg-type]
        for at, (kind, name, content) in enumerate(keys)
    ]


@given(contents, contents, contents)
def test_every_row_is_common_or_counted_as_its_runs_own(
    a: list[tuple[str, str, int]], b: list[tuple[str, str, int]], c: list[tuple[str, str, int]]
) -> None:
    files = {"A": made(a), "B": made(b, 100), "C": made(c, 200)}
    found = common_rows(files)
    for rows in found.rows:
        assert len({(each.kind, each.digest) for each in rows}) == 1
    for at, (label, file) in enumerate(files.items()):
        used = [each[at].tuned.loss for each in found.rows]
        assert len(set(used)) == len(used), "no row is used twice"
        assert len(used) + sum(each.others.get(label, 0) for each in found.sets) == len(file)
    assert sum(each.common for each in found.sets) == len(found.rows)


@given(contents, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(keys: list[tuple[str, str, int]], random: object) -> None:
    shuffled = list(keys)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = common_rows({"A": made(keys), "B": made(shuffled)})
    assert found.complete
    assert len(found.rows) == len(keys)
    assert all(a.name == b.name for a, b in found.rows), "rows of the same set are preferred"


@given(contents, contents)
def test_as_many_rows_correspond_as_the_digests_allow(
    a: list[tuple[str, str, int]], b: list[tuple[str, str, int]]
) -> None:
    found = common_rows({"A": made(a), "B": made(b)})
    one, other = (Counter((kind, content) for kind, _, content in keys) for keys in (a, b))
    assert len(found.rows) == (one & other).total()


def test_rows_that_occur_twice_correspond_in_order() -> None:
    first = [row("same", 1.0), row("other", 2.0), row("same", 3.0)]
    second = [row("same", 10.0), row("same", 30.0), row("other", 20.0)]
    found = common_rows({"A": first, "B": second})
    assert [(a.tuned.loss, b.tuned.loss) for a, b in found.rows] == [(1, 10), (2, 20), (3, 30)]


def test_a_set_may_have_another_name() -> None:
    found = common_rows({"A": [row(1, 1.0, name="old")], "B": [row(1, 2.0, name="new")]})
    assert found.complete
    assert [each.name for each in found.sets] == ["old"]


def test_other_rows_are_named_by_set_and_digest() -> None:
    first = [row(at, 1.0) for at in range(5)]
    second = [*first[:3], row("faq", 1.0, kind="Dataset", name="faq")]
    validation, faq = common_rows({"A": first, "B": second}).sets
    assert (validation.common, validation.others) == (3, {"A": 2})
    assert validation.first == {"A": [first[3].digest[:12], first[4].digest[:12]]}
    assert (faq.name, faq.common, faq.others) == ("faq", 0, {"B": 1})


def test_more_sets_than_any_job_has_are_refused() -> None:
    hostile = [row(at, 1.0, name=f"set-{at}") for at in range(65)]
    with pytest.raises(NotComparableError, match="65 sets"):
        common_rows({"A": hostile, "B": hostile})
