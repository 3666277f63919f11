from pathlib import Path

import pytest

from finetune_operator.__main__ import main
from finetune_operator.runtime.settings import Settings, SettingsError, usage


def test_nothing_needs_to_be_set() -> None:
    settings = Settings.from_environment({})
    assert settings.namespaces == []
    assert settings.service_account.path == Path("/var/run/secrets/kubernetes.io/serviceaccount")


def test_variables_are_read_and_empty_ones_count_as_absent() -> None:
    settings = Settings.from_environment(
        {
            "FINETUNE_NAMESPACES": "team-a, team-b,",
            "FINETUNE_SERVICEACCOUNT_DIR": "/sa",
            "FINETUNE_LOG_LEVEL": "INFO",
            "FINETUNE_WORKERS": "4",
            "FINETUNE_OPERATOR_NAMESPACE": "",
            "FINETUNE_CACHE": "/not/ours",
        }
    )
    assert settings.namespaces == ["team-a", "team-b"]
    assert settings.service_account.ca == Path("/sa/ca.crt")
    assert settings.log_level == "info"
    assert settings.workers == 4
    assert settings.operator_namespace is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FINETUNE_WORKERS", "many"),
        ("FINETUNE_WORKERS", "0"),
        ("FINETUNE_HEALTH_PORT", "70000"),
        ("FINETUNE_LOG_LEVEL", "chatty"),
        ("FINETUNE_RESYNC_SECONDS", "-1"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{variable}='{value}'"):
        Settings.from_environment({variable: value})


def test_help_names_every_variable_with_its_meaning() -> None:
    text = usage()
    for name, field in Settings.model_fields.items():
        assert f"FINETUNE_{name.upper()}" in text
        assert field.description, name


def test_an_argument_is_refused_rather_than_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--namespace", "team-a"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --namespace team-a" in capsys.readouterr().err
