"""Every command against what goes wrong around it: one clear error, the right exit code, nothing half written."""

import copy
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from aiohttp import web

from finetune_contract import RunFolder, Sample
from finetune_operator.artifacts.port import StorageUnavailable
from finetune_operator.artifacts.scheme_router import SchemeRouter
from finetune_operator.cli.commands import app
from finetune_operator.cluster import api_server_client
from tests.unit.cli.command_rows import DONE, FAILED, LOCAL, OTHER, ROWS, RUNNING, CommandRow
from tests.unit.cli.exported import FILES, sha256, write_run
from tests.unit.cli.stand_in import StandIn, kubeconfig, stand_in
from tests.unit.cli.test_compare import written
from tests.unit.comparison.runs import rows, samples

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
JOBS = Path(__file__).parent / "jobs"
FINETUNE = Path(sys.executable).with_name("finetune")
ESCAPE = "\x1b[2J\x1b[31mred"

every = pytest.mark.parametrize("row", ROWS, ids=str)
in_a_cluster = pytest.mark.parametrize("row", [row for row in ROWS if row.cluster], ids=str)
of_a_job = pytest.mark.parametrize("row", [row for row in ROWS if row.job], ids=str)
of_a_store = pytest.mark.parametrize("row", [row for row in ROWS if row.store], ids=str)


@dataclass(frozen=True)
class Done:
    """What a command has done."""

    code: int
    stdout: str
    stderr: str


def run(arguments: list[str], stdout: io.TextIOWrapper | None = None) -> Done:
    """Runs the program in this process. An exception that would be a traceback fails the test."""
    out, err = stdout or io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO())
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            app(arguments, prog_name="finetune")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        else:
            code = 0
    return Done(code, "" if stdout else _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]


def refused(done: Done, *told: str, code: int = 1) -> None:
    """Asserts that the command failed with one error, and at most one remedy."""
    lines = done.stderr.splitlines()
    assert done.code == code, done
    assert [line.split()[0] for line in lines] in (["Error:"], ["Error:", "Fix:"]), done
    assert "Traceback" not in done.stderr
    for words in told:
        assert words in done.stderr, done


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No wait between requests, no kubeconfig of the machine, a TensorBoard that ends at once, and Ctrl-C."""
    limits = partial(api_server_client.CallLimits, backoff_seconds=0)
    monkeypatch.setattr(api_server_client, "CallLimits", limits)
    for name in ("KUBECONFIG", "FINETUNE_LEDGER", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "tensorboard").write_text("#!/bin/sh\necho started\n")
    (programs / "tensorboard").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    # It is ignored where the tests run in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folders(tmp_path)


def run_folders(folder: Path) -> Path:
    """Writes the run folders of two jobs, with all records that commands read, and an empty ledger."""
    (folder / "ledger").mkdir()
    for number, name in enumerate((DONE, OTHER)):
        place = folder / name
        written(place, rows(20, seed=number), evaluation_samples=samples("yes", "no"))
        write_run(place, {"model": FILES})
        for uri in (RunFolder(f"file://{place}").log_tail(stage, 1, 0) for stage in ("train", "export")):
            file = Path(uri.removeprefix("file://"))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("step 1\nstep 2\n")
        events = place / "train" / "tensorboard" / "events.out.tfevents.1764000000.host"
        events.parent.mkdir(parents=True)
        events.write_bytes(b"events")
    return folder


def job(name: str, phase: str, folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((JOBS / f"{phase}.yaml").read_text())
    quickstart: dict[str, Any] = yaml.safe_load(
        (JOBS.parents[3] / "examples" / "quickstart.yaml").read_text()
    )
    loaded["metadata"]["name"] = name
    loaded["spec"] = quickstart["spec"]
    if phase == "succeeded":
        uri = f"file://{folder / name}"
        loaded["status"]["resolved"]["runFolder"] = uri
        (artifact,) = loaded["status"]["artifacts"]
        manifest = (folder / name / "export" / "model" / "manifest.json").read_bytes()
        artifact |= {"uri": f"{uri}/export/model", "digest": f"sha256:{sha256(manifest)}"}
    return loaded


@pytest.fixture
def server(folder: Path) -> Iterator[StandIn]:
    """A cluster with the jobs of the rows."""
    with stand_in(folder) as server:
        for name, phase in (
            (DONE, "succeeded"),
            (OTHER, "succeeded"),
            (RUNNING, "running"),
            (FAILED, "failed"),
        ):
            server.put("finetunejobs", job(name, phase, folder))
        server.put("finetuneprofiles", yaml.safe_load(Path(LOCAL).read_text()))
        yield server


def test_every_command_has_a_row() -> None:
    assert {row.command for row in ROWS} == set(COMMANDS)


@every
def test_without_trouble_a_command_ends_as_its_row_says(
    row: CommandRow, folder: Path, server: StandIn
) -> None:
    done = run(row.arguments(folder, server.kubeconfig))
    assert done.code == row.code, done
    assert done.stdout or row.command == "tensorboard", done


# --- the cluster


def invalid(text: str | bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(text if isinstance(text, bytes) else text.encode()) and None  # type: ignore[func-returns-value]


KUBECONFIGS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "absent": (lambda _path: None, "no usable kubeconfig"),
    "empty": (invalid(""), "no usable kubeconfig"),
    "a folder": (Path.mkdir, "no usable kubeconfig"),
    "no mapping": (invalid("- a\n- b\n"), "no usable kubeconfig"),
    "no YAML": (invalid("a: [b\nc: {"), "no usable kubeconfig"),
    "no text": (invalid(b"\xff\xfe\x00\x80"), "no usable kubeconfig"),
    "no contexts": (invalid("current-context: a\n"), "no usable kubeconfig"),
    "a context without a name": (
        invalid("current-context: a\ncontexts: [{context: {}}]\nclusters: 5\n"),
        "no usable kubeconfig",
    ),
    "a certificate that is none": (
        invalid(kubeconfig("https://127.0.0.1:1", **{"certificate-authority-data": "bm9uZQ=="})),
        "certificates that the kubeconfig names cannot be used",
    ),
    "a certificate that is not there": (
        invalid(kubeconfig("https://127.0.0.1:1", **{"certificate-authority": "gone.pem"})),
        "gone.pem",
    ),
    "a program that is not there": (
        invalid(kubeconfig("http://127.0.0.1:1", {"exec": {"command": "no-such-login", "apiVersion": "v1"}})),
        "no-such-login",
    ),
    "a program that fails": (
        invalid(
            kubeconfig(
                "http://127.0.0.1:1",
                {
                    "exec": {
                        "command": "/bin/sh",
                        "args": ["-c", "echo log in >&2; exit 3"],
                        "apiVersion": "v1",
                    }
                },
            )
        ),
        "log in",
    ),
    "a server that is away": (
        invalid(kubeconfig("http://127.0.0.1:1")),
        "http://127.0.0.1:1 does not respond",
    ),
}


@pytest.mark.parametrize("case", KUBECONFIGS)
@in_a_cluster
def test_a_kubeconfig_that_leads_nowhere_is_an_error_with_a_remedy(
    row: CommandRow, case: str, folder: Path
) -> None:
    write, told = KUBECONFIGS[case]
    path = folder / "kubeconfig"
    write(path)
    done = run(row.arguments(folder, path))
    refused(done, told, "Fix:")


@in_a_cluster
def test_a_wrong_context_is_named_with_the_similar_one(
    row: CommandRow, folder: Path, server: StandIn
) -> None:
    done = run([*row.arguments(folder, server.kubeconfig), "--context", "tset"])
    refused(done, 'has no context "tset"', "Did you mean test?")


STATUSES = {
    401: ("does not accept your credentials", "Log in again"),
    403: ("403", "Ask for a "),
    500: ("does not respond", "Check that it runs"),
}


@pytest.mark.parametrize("status", STATUSES)
@in_a_cluster
def test_a_server_that_refuses_everything(
    row: CommandRow, status: int, folder: Path, server: StandIn
) -> None:
    server.api.refuse = status
    done = run(row.arguments(folder, server.kubeconfig))
    refused(done, *STATUSES[status])


@in_a_cluster
def test_a_server_that_is_none(row: CommandRow, folder: Path, server: StandIn) -> None:
    """As a proxy that asks for a login."""
    server.answer = lambda _request: web.Response(text="<html>Log in", content_type="text/html")
    refused(run(row.arguments(folder, server.kubeconfig)), "the response is not JSON")


@in_a_cluster
def test_a_cluster_without_the_custom_resources(row: CommandRow, folder: Path, server: StandIn) -> None:
    server.api.absent = frozenset({"finetunejobs", "finetuneprofiles"})
    done = run(row.arguments(folder, server.kubeconfig))
    refused(done, "does not serve finetune", "Install the chart")


@of_a_job
def test_a_job_that_does_not_exist_gets_a_suggestion(row: CommandRow, folder: Path, server: StandIn) -> None:
    misspelt = row.job[:-1] + "x"
    words = [misspelt if word == row.job else word for word in row.arguments(folder, server.kubeconfig)]
    refused(
        run(words), f'There is no FineTuneJob "{misspelt}" in namespace team-a', f"Did you mean {row.job}"
    )


@of_a_job
def test_an_empty_namespace_suggests_another_one(row: CommandRow, folder: Path, server: StandIn) -> None:
    server.api.objects.clear()
    refused(run(row.arguments(folder, server.kubeconfig)), "choose another namespace with -n")


def of_one_namespace(request: web.Request) -> web.Response | None:
    """Refuses all that a role in the namespace ``team-a`` does not allow."""
    if "/namespaces/team-a/" in request.path:
        return None
    message = f'User "alice" cannot list {request.path}'
    return web.json_response({"kind": "Status", "message": message}, status=403)


@in_a_cluster
def test_a_caller_who_may_see_one_namespace(row: CommandRow, folder: Path, server: StandIn) -> None:
    server.answer = of_one_namespace
    done = run(row.arguments(folder, server.kubeconfig))
    if row.whole_cluster:
        refused(done, "alice", "Ask for a ")
    else:
        assert done.code == row.code, done


@of_a_job
def test_a_caller_who_may_only_get_a_job_learns_that_there_is_none(
    row: CommandRow, folder: Path, server: StandIn
) -> None:
    server.api.objects.clear()

    def answer(request: web.Request) -> web.Response | None:
        return None if "name" in request.match_info else web.json_response({"message": "no list"}, status=403)

    server.answer = answer
    refused(
        run(row.arguments(folder, server.kubeconfig)), "There is no FineTuneJob", "Choose another namespace"
    )


# --- the store


@of_a_store
def test_a_store_that_is_away(
    row: CommandRow, folder: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_store: SchemeRouter, uri: str, **_limits: int) -> None:
        raise StorageUnavailable(uri, "connection refused")

    for call in ("read", "read_part", "list"):
        monkeypatch.setattr(SchemeRouter, call, away)
    done = run(row.arguments(folder, server.kubeconfig))
    refused(done, "connection refused", "Fix:")
    assert not (folder / "to").exists()


GARBAGE = {
    "bytes": b"\x00\xff\xfe" * 1000,
    "nothing": b"",
    "half a record": b'{"version": 2, "files": [{"path": "a"',
    "another record": b'{"version": 2, "job": 5, "artifacts": [], "rows": {}}\n',
    "deep": b"[" * 100_000,
    "infinite": b'{"version": 1e999, "loss": NaN}',
    "control characters": ESCAPE.encode() + b"\r\x07\n",
}


@pytest.mark.parametrize("case", GARBAGE)
@of_a_store
def test_a_run_folder_with_garbage(row: CommandRow, case: str, folder: Path, server: StandIn) -> None:
    found = [file for name in (DONE, OTHER) for file in (folder / name).rglob("*") if file.is_file()]
    for file in found:
        file.write_bytes(GARBAGE[case])
    (folder / "ledger" / "record.json").write_bytes(GARBAGE[case])
    done = run(row.arguments(folder, server.kubeconfig))
    if done.code:
        assert done.stderr.startswith("Error: "), done
        assert done.stderr.count("Error: ") == 1, done
    assert "\x1b" not in done.stdout + done.stderr
    assert not (folder / "to" / "manifest.json").exists()


@of_a_store
def test_a_run_folder_with_folders_in_place_of_files(row: CommandRow, folder: Path, server: StandIn) -> None:
    for name in (DONE, OTHER):
        for file in [each for each in (folder / name).rglob("*") if each.is_file()]:
            file.unlink()
            file.mkdir()
    done = run(row.arguments(folder, server.kubeconfig))
    if done.code:
        assert done.stderr.count("Error: ") == 1, done
    assert not (folder / "to" / "manifest.json").exists()


# --- the terminal


@every
def test_a_terminal_of_forty_columns(
    row: CommandRow, folder: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = run(row.arguments(folder, server.kubeconfig))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    server.put("finetunejobs", job(RUNNING, "running", folder))
    server.put("finetunejobs", job(FAILED, "failed", folder))
    narrow = run(row.arguments(folder, server.kubeconfig))
    assert narrow.code == wide.code == row.code, narrow
    # These show more on a terminal, or the time, or versions of objects.
    if row.command not in {"watch", "compare", "download", "costs"} and "json" not in row.words:
        assert words_of(narrow.stdout) == words_of(wide.stdout)


def words_of(text: str) -> list[str]:
    """The words of an output, whatever their color, without times that pass."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return [word for word in plain.split() if not word.isdecimal()]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_on_a_terminal_of_forty_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    done = run([command, "--help"])
    assert done.code == 0
    assert done.stdout
    assert done.stderr == ""


@every
def test_a_pipe_that_closes_is_no_error(row: CommandRow, folder: Path, server: StandIn) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stdout = io.TextIOWrapper(io.FileIO(writer, "w"), "utf-8", write_through=True)
    done = run(row.arguments(folder, server.kubeconfig), stdout)
    stdout.detach()
    if row.command == "tensorboard":  # It prints nothing itself.
        return
    assert (done.code, "Traceback" in done.stderr, "Error" in done.stderr) == (1, False, False), done


@pytest.mark.parametrize("words", [("explain",), ("--help",)], ids=str)
def test_a_disk_that_is_full_is_an_error(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run([FINETUNE, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")


def test_a_pipe_whose_reader_has_gone_is_no_error_of_the_program() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [FINETUNE, "explain"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_symbols_that_a_terminal_does_not_know_are_replaced() -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [FINETUNE, "plan", *ROWS[2].words[1:]], env=environment, capture_output=True, check=True
    )
    assert b"Traceback" not in done.stderr


# --- Ctrl-C


@in_a_cluster
def test_ctrl_c_while_the_server_is_silent(row: CommandRow, folder: Path, server: StandIn) -> None:
    server.interrupts = True
    done = run(row.arguments(folder, server.kubeconfig))
    assert done.code == 130, done
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


class Interrupted:
    """Raises KeyboardInterrupt at the call number ``at`` of a function of the product; counts them all."""

    def __init__(self, at: int) -> None:
        self.calls = 0
        self._at = at

    def __call__(self, frame: Any, event: str, _argument: object) -> None:
        if event == "call" and "finetune_operator" in frame.f_code.co_filename:
            self.calls += 1
            if self.calls == self._at:
                sys.setprofile(None)
                raise KeyboardInterrupt


#: Moments of a command at which it is interrupted.
MOMENTS = 8


@pytest.mark.parametrize("moment", range(MOMENTS))
@every
def test_ctrl_c_at_any_moment(row: CommandRow, moment: int, folder: Path, server: StandIn) -> None:
    arguments = row.arguments(folder, server.kubeconfig)
    if row.command == "init":
        arguments += ["--output", str(folder / "job.yaml"), "--force"]
    count = Interrupted(0)
    before = copy.deepcopy(server.api.objects)
    whole = profiled(count, arguments)
    assert whole.code == row.code, whole
    files = {path.name for path in folder.iterdir()}
    content = (folder / "job.yaml").read_text() if row.command == "init" else ""
    (folder / "job.yaml").unlink(missing_ok=True)
    for file in (folder / "to").rglob("manifest.json"):
        file.unlink()
    server.api.objects = before
    done = profiled(Interrupted(1 + count.calls * moment // MOMENTS), arguments)
    assert done.code == 130, done
    assert "Traceback" not in done.stderr
    # Nothing half written: no file or the whole one, and no temporary one.
    assert {path.name for path in folder.iterdir()} <= files
    if (folder / "job.yaml").exists():
        assert (folder / "job.yaml").read_text() == content
    if (folder / "to" / "manifest.json").exists():
        assert {path.name for path in (folder / "to").iterdir()} == {
            "manifest.json",
            *(n.split("/")[0] for n in FILES),
        }


def profiled(profile: Interrupted, arguments: list[str]) -> Done:
    sys.setprofile(profile)
    try:
        return run(arguments)
    finally:
        sys.setprofile(None)


#: Interrupts the process at the import of a module.
AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "module",
    [
        "typer",
        "finetune_operator.cli.commands",
        "finetune_operator.cli.options",
        "pydantic",
        "finetune_operator.api",
    ],
)
def test_ctrl_c_while_modules_are_imported(module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    done = subprocess.run(
        [FINETUNE, "validate", "-f", ROWS[3].words[2]],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "INTERRUPT_AT": module},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (130, -signal.SIGINT), done
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_sample_has_no_control_characters(folder: Path, server: StandIn) -> None:
    hostile = Sample(prompt=ESCAPE, baseline=ESCAPE, tuned=ESCAPE, reference=None)
    (folder / DONE / "evaluate" / "samples.jsonl").write_text(hostile.to_json())
    done = run(["try", DONE, "hello", "--kubeconfig", str(server.kubeconfig)])
    assert "red" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    "words", [("status",), ("watch",), ("list", "-o", "wide"), ("wait",), ("logs",)], ids=str
)
def test_texts_of_a_status_do_not_change_the_terminal(
    words: tuple[str, ...], folder: Path, server: StandIn
) -> None:
    hostile = job(DONE, "succeeded", folder)
    status = hostile["status"]
    status["summary"] = f"{ESCAPE}\r\n"
    status["resolved"]["model"]["source"] = ESCAPE
    status["artifacts"][0]["type"] = ESCAPE
    status["stages"][1]["cache"] = {"result": "Miss", "missBecause": [ESCAPE]}
    server.put("finetunejobs", hostile)
    (folder / DONE / "attempts" / "export-1" / "log-tail.txt").write_text(f"{ESCAPE}\n")
    name = [] if words[0] == "list" else [DONE]
    done = run([*words, *name, "--kubeconfig", str(server.kubeconfig)])
    assert done.code == 0, done
    assert "red" in done.stdout
    assert "\x1b" not in done.stdout
