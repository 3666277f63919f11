"""JSON of other clients, nested to any depth."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.cluster.json_depth import shallow

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(documents)
def test_what_is_not_deep_stays(document: Any) -> None:
    assert json.loads(shallow(json.dumps(document).encode())) == document


@pytest.mark.parametrize("depth", [65, 200, 3_000, 500_000])
@pytest.mark.parametrize(("opened", "closed"), [('{"a":', "}"), ("[", "]")])
def test_what_is_deep_is_cut_and_what_stands_beside_it_stays(depth: int, opened: str, closed: str) -> None:
    text = f'{{"deep": {opened * depth}1{closed * depth}, "beside": "a \\" [ {{ b", "more": [1, 2]}}'
    found = json.loads(shallow(text.encode()))
    assert (found["beside"], found["more"]) == ('a " [ { b', [1, 2])
