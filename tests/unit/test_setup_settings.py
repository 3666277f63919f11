"""The variables of the last run of the set-up script, which the next run is compared with."""

import re
import shlex
from pathlib import Path

import pytest

from tests import setup_script
from tests.setup_script import VARIABLES, World


def settings(world: World) -> dict[str, str]:
    lines = (world.files / "settings.env").read_text().splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return dict(word.split("=", 1) for (word,) in filter(None, words))


def test_a_variable_that_is_not_set_is_as_at_the_last_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.run("apis", LEDGER="true", SLICES="v6e-4*4  v6e-16").returncode == 0
    before = settings(world)
    done = world.run("apis", **dict.fromkeys(VARIABLES, ""))
    assert done.returncode == 0, done.stderr
    assert settings(world) == before
    assert (before["LEDGER"], before["SLICES"]) == ("true", "v6e-4*4 v6e-16")


def test_a_variable_that_has_another_value_stops_the_run_before_anything_is_called(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.run("apis", LEDGER="true", SLICES="v6e-4*4  v6e-16").returncode == 0
    before = (world.files / "settings.env").read_text()
    for arguments in (["apis"], ["withdraw", "team-a"], ["--remove", "--yes"], ["first-job"]):
        done = world.run(*arguments, KUEUE="true", SLICES="v6e-4")
        assert done.returncode == 1
        assert world.calls == []
        changes = re.findall(r'^  (\S+): was "(.*)", is "(.*)"$', done.stderr, re.MULTILINE)
        assert changes == [("SLICES", "v6e-4*4 v6e-16", "v6e-4"), ("KUEUE", "false", "true")]
        assert "--change" in done.stderr.partition("Fix:")[2]
    assert (world.files / "settings.env").read_text() == before


def test_a_variable_that_was_not_kept_is_a_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.files.mkdir()
    (world.files / "settings.env").write_text("PROJECT='my-project'\n")
    done = world.run("apis")
    assert done.returncode == 1
    assert f'TEAMS: was not kept, is "{VARIABLES["TEAMS"]}"' in done.stderr


def test_a_checkout_of_another_release_is_a_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.run("apis", VERSION="0.1.0").returncode == 0
    done = world.run("apis")
    assert done.returncode == 1
    assert 'VERSION: was "0.1.0"' in done.stderr


@pytest.mark.parametrize("arguments", [["--remove", "--yes"], ["withdraw", "team-a"]], ids=str)
def test_what_removes_is_not_held_up_by_the_release_of_the_checkout(
    arguments: list[str], tmp_path: Path
) -> None:
    world = World(tmp_path)
    world.run("apis", VERSION="0.1.0", TEAMS="team-a team-b")
    assert world.run(*arguments, TEAMS="").returncode == 0
    assert settings(world)["VERSION"] == "0.1.0"


def test_the_file_has_the_variables_of_the_last_run_for_a_shell(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("apis", LEDGER="true")
    found = settings(world)
    assert {name: found[name] for name in VARIABLES} == VARIABLES
    assert found["LEDGER"] == "true"
    assert world.run("apis", **found).returncode == 0


def test_a_change_that_is_confirmed_is_made_and_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("apis")
    done = world.run("--change", "apis", LEDGER="true")
    assert done.returncode == 0, done.stderr
    assert 'LEDGER: was "false", is "true"' in done.stderr
    assert world.run("apis").returncode == 0
    assert world.run("apis", LEDGER="false").returncode == 1


def test_a_dry_run_shows_what_differs_and_keeps_the_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("apis", LEDGER="true")
    done = world.run("--dry-run", "apis", LEDGER="false")
    assert done.returncode == 0
    assert '#  LEDGER: was "true", is "false"\n# Without --change' in done.stdout
    assert settings(world)["LEDGER"] == "true"


def test_a_run_that_fails_can_be_repeated_and_is_not_taken_back_by_mistake(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("apis")
    failed = world.run("--change", "apis", "images", LEDGER="true", FAIL="repositories create")
    assert failed.returncode == 1
    assert world.run("apis", LEDGER="true").returncode == 0
    assert world.run("apis", LEDGER="false").returncode == 1


def test_other_spaces_between_words_are_no_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("apis", TEAMS="team-a team-b")
    assert world.run("apis", TEAMS=" team-a\n  team-b\n").returncode == 0


@pytest.mark.parametrize(
    "line",
    [
        "LEDGER=$(touch PWNED)",
        "LEDGER='true'; touch PWNED",
        "LEDGER=true",
        "PATH='/tmp'",
        "IFS[$(touch PWNED)]='x'",
        "LEDGER='a\x1b[2Jb'",
        "<<<<<<< HEAD",
    ],
)
def test_a_line_that_is_not_a_setting_is_refused_and_never_run(line: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.files.mkdir()
    (world.files / "settings.env").write_text(f"KUEUE='false'\n{line}\n")
    done = world.run("--change", "apis")
    assert done.returncode == 1
    assert "expected NAME='VALUE'" in done.stderr
    assert world.calls == []
    assert not Path("PWNED").exists()


def test_every_variable_is_compared_except_those_of_a_machine_and_of_one_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("apis")
    head = setup_script.SCRIPT.read_text().partition("# Variables of the environment")[2]
    variables = set(re.findall(r"[A-Z][A-Z_]{3,}", head.partition("\n# Without")[0]))
    assert variables - set(settings(world)) == {"BUILDER", "FILES", "DELETE_DATA"}
    assert set(settings(world)) <= variables


@pytest.mark.parametrize("installed", ["finetune-operator", "gke-team-a"])
def test_a_first_run_beside_an_installation_stops_before_it_changes_anything(
    installed: str, tmp_path: Path
) -> None:
    world = World(tmp_path)
    found = {"EXIST": "yes", "INSTALLED": installed}
    for steps in ([], ["controllers"], ["teams"], ["operator"], ["profiles"]):
        done = world.run(*steps, **found)
        assert done.returncode == 1
        assert installed in done.stderr.partition("Error: ")[2]
        assert "from version control" in done.stderr
        assert [
            each for each in world.calls if not re.search(r" (get|describe|get-credentials) ", each)
        ] == []
        assert not (world.files / "settings.env").exists()
    assert world.run("--change", "teams", **found).returncode == 0
    assert world.run("teams", **found).returncode == 0


def test_a_first_run_in_a_cluster_without_the_operator_goes_ahead(tmp_path: Path) -> None:
    assert World(tmp_path).run("teams", EXIST="yes").returncode == 0


def test_a_first_run_that_cannot_ask_the_cluster_stops(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.run("teams", EXIST="yes", FAIL="get deployment finetune-operator").returncode == 1
    assert not any(" apply " in each for each in world.calls)


def test_a_run_beside_another_one_with_the_same_folder_stops(tmp_path: Path) -> None:
    world = World(tmp_path)
    (world.files / "lock").mkdir(parents=True)
    for arguments in (["apis"], ["withdraw", "team-a"], ["--remove", "--yes", "--change"]):
        done = world.run(*arguments)
        assert done.returncode == 1
        assert f"rmdir {world.files}/lock" in done.stderr.partition("Fix:")[2]
        assert world.calls == []
    assert world.run("--dry-run").returncode == 0
    (world.files / "lock").rmdir()
    assert world.run("apis").returncode == 0


@pytest.mark.parametrize("ends", [{}, {"FAIL": "services enable"}, {"TERM_AT": "services enable"}], ids=str)
def test_the_lock_goes_with_the_run_however_it_ends(ends: dict[str, str], tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run("apis", **ends)
    assert (done.returncode == 0) == (not ends)
    assert [each.name for each in world.files.iterdir()] == ["settings.env"]


def test_a_refused_first_run_leaves_no_folder(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.run("apis", SLICES="v6e-5").returncode == 1
    assert not world.files.exists()
