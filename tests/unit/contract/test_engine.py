"""The table of the engine's settings, and the values that an allowed one takes."""

import csv
import difflib
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import finetune_contract
from finetune_contract import MemoryOutcome
from finetune_contract.engine import (
    TUNED,
    FaultKind,
    Setting,
    SettingClass,
    engine_settings,
    override_faults,
    override_values,
    parse_value,
)
from finetune_operator.api import FineTuneJobSpec, field_paths

TABLE = Path(finetune_contract.__file__).with_name("engine_settings.csv")
SETTINGS = engine_settings().values()
ALLOWED = [setting for setting in SETTINGS if setting.kind is SettingClass.ALLOWED]
REFUSED = [setting for setting in SETTINGS if setting.kind is not SettingClass.ALLOWED]
#: Parts of names of places, services, ports, programs and credentials.
REACHING = re.compile(
    r"(^|_)(paths?|dirs?|directory|files?|uri|url|project|port|hostname|access_token|gcs|upload|wandb|vertex|goodput|"
    r"flags|func_path|conversion_fn|dump|bucket|replicator|emergency|cache_dir)(_|$)"
)


def test_every_setting_stands_once_and_in_order() -> None:
    with TABLE.open(encoding="utf-8") as lines:
        keys = [row["key"] for row in csv.DictReader(lines)]
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("setting", ALLOWED, ids=lambda setting: setting.name)
def test_an_allowed_setting_takes_no_free_text(setting: Setting) -> None:
    assert setting.note
    number = re.fullmatch(r"(int|float)(>=?[0-9.]+)?(<=?[0-9.]+)?", setting.type)
    assert setting.type == "bool" or number or re.fullmatch(r"\w+(\|\w+)+", setting.type)


def test_what_is_not_allowed_says_why_and_has_no_type() -> None:
    assert [setting.name for setting in REFUSED if not setting.note or setting.type] == []


def test_a_decider_is_a_field_of_the_job_or_the_trainer() -> None:
    deciders = {setting.note for setting in REFUSED if setting.kind is SettingClass.DECIDED}
    known = {f"spec.{path}" for path in field_paths(FineTuneJobSpec)}
    sections = {path.rpartition(".")[0] for path in known}
    assert deciders - known - sections <= {"the trainer"}


def test_no_allowed_setting_speaks_of_a_place() -> None:
    assert [setting.name for setting in ALLOWED if REACHING.search(setting.name)] == []


def test_what_speaks_of_a_place_is_dangerous() -> None:
    speaking = [setting for setting in REFUSED if REACHING.search(setting.name)]
    assert len(speaking) > 60
    assert [each.name for each in speaking if each.kind is not SettingClass.DANGEROUS] == [
        "grain_file_type"  # the kind of a file, not its place
    ]


VALUES: list[tuple[str, str, object]] = [
    ("remat_policy", "full", "full"),
    ("remat_policy", " full ", None),
    ("remat_policy", "3", None),
    ("remat_policy", "Full", None),
    ("remat_policy", "", None),
    ("remat_policy", "full|custom", None),
    ("remat_policy", "gs://bucket/x", None),
    ("remat_policy", "${oc.env:HF_TOKEN}", None),
    ("attention", "vllm_rpa", None),
    ("use_iota_embed", "true", True),
    ("use_iota_embed", "Yes", True),
    ("use_iota_embed", "off", False),
    ("use_iota_embed", "1", None),
    ("use_iota_embed", "maybe", None),
    ("num_vocab_tiling", "8", 8),
    ("num_vocab_tiling", "+8", 8),
    ("num_vocab_tiling", "0", None),
    ("num_vocab_tiling", "-8", None),
    ("num_vocab_tiling", "010", None),
    ("num_vocab_tiling", "1_000", None),
    ("num_vocab_tiling", "0x10", None),
    ("num_vocab_tiling", "8.0", None),
    ("num_vocab_tiling", "true", None),
    ("num_vocab_tiling", "٨", None),
    ("num_vocab_tiling", "9" * 12, None),
    ("num_vocab_tiling", "9" * 1024, None),
    ("adam_b2", "0.99", 0.99),
    ("adam_b2", "0", 0.0),
    ("adam_b2", "1", None),
    ("adam_b2", "-0.1", None),
    ("adam_b2", "nan", None),
    ("adam_b2", ".inf", None),
    ("adam_eps", "1e-8", 1e-8),
    ("adam_eps", "1e999", None),
    ("adam_eps", "0", None),
    ("adam_eps", "[1]", None),
]


@pytest.mark.parametrize(("key", "text", "value"), VALUES)
def test_a_value_is_of_its_settings_type_or_refused(key: str, text: str, value: object) -> None:
    found = parse_value(engine_settings()[key], text)
    assert (found, type(found)) == (value, type(value))


@given(st.dictionaries(st.text(max_size=63), st.text(max_size=64), max_size=8))
def test_what_is_refused_has_a_place_and_a_fix_and_what_is_not_has_values(overrides: dict[str, str]) -> None:
    faults = list(override_faults(overrides))
    assert {fault.key for fault in faults} <= overrides.keys()
    assert all(str(fault).startswith(f"spec.engineOverrides.{fault.key}: ") and fault.fix for fault in faults)
    if not faults:
        assert override_values(overrides).keys() == overrides.keys()


@given(st.sampled_from(REFUSED), st.sampled_from(["", ".", ".x", ".x.y"]), st.text(max_size=64))
def test_no_value_opens_a_setting_of_another_class(setting: Setting, inside: str, text: str) -> None:
    (fault,) = override_faults({setting.name + inside: text})
    assert fault.kind is FaultKind.NOT_ALLOWED


def test_where_an_activation_goes_is_read_by_the_custom_policy_alone() -> None:
    assert list(override_faults({"remat_policy": "custom", "context": "offload"})) == []
    (fault,) = override_faults({"remat_policy": "full", "context": "offload"})
    assert "remat_policy custom" in str(fault)


def test_64_misspelt_settings_of_a_job_cost_a_bounded_number_of_comparisons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator judges the jobs of all tenants in one thread."""
    compared = []

    class Counted(difflib.SequenceMatcher[str]):
        def set_seq1(self, a: Sequence[str]) -> None:
            compared.append(a)
            super().set_seq1(a)

    monkeypatch.setattr(difflib, "SequenceMatcher", Counted)
    names = sorted(engine_settings(), key=len)[-64:]
    faults = list(override_faults({f"{name[:-2]}{name[-1]}{name[-2]}_": "true" for name in names}))
    assert [fault.kind for fault in faults] == [FaultKind.UNKNOWN] * 64
    assert sum(fault.fix.startswith("Did you mean") for fault in faults) == 3
    assert len(compared) < 400


TUNINGS: list[dict[str, str | int]] = [
    {"jax_cache_dir": "gs://elsewhere/cache"},
    {"adam_b2": "0.9"},  # a job may set it; preflight does not choose it
    {"remat_policy": "gs://elsewhere"},
    {"num_vocab_tiling": 0},
    {"decoder_layer_input": "offload"},
]


@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
def test_a_record_carries_only_what_preflight_may_choose(tuning: dict[str, str | int]) -> None:
    with pytest.raises(ValidationError, match="tuning"):
        MemoryOutcome(source="Compile", slice="v6e-4", tuning=tuning)


def test_what_preflight_chooses_is_allowed() -> None:
    assert {engine_settings()[key].kind for key in TUNED} == {SettingClass.ALLOWED}
    chosen: dict[str, str | int] = {
        "remat_policy": "custom", "decoder_layer_input": "offload", "num_vocab_tiling": 8,
    }  # fmt: skip
    assert MemoryOutcome(source="Compile", slice="v6e-4", tuning=chosen).tuning == chosen
