"""The devcluster program's texts."""

import pytest

from devcluster import gcs
from devcluster.__main__ import main


def test_the_help_names_the_commands_of_users_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "stop the cluster" in shown
    assert "SUPPRESS" not in shown


def test_clients_of_the_emulator_do_not_ask_it_for_the_kind_of_a_bucket() -> None:
    assert gcs.client_environment("http://a")["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] == "false"
