"""The package's names are imported when they are used."""

import subprocess
import sys

import pytest

import finetune_contract


@pytest.mark.parametrize("name", finetune_contract.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(finetune_contract, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = finetune_contract.Nothing  # type: ignore[attr-defined]


def test_the_name_of_a_stage_imports_no_model() -> None:
    code = "import sys; from finetune_contract import RunFolder, Stage; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
