"""Every command without a cluster, with wrong credentials, without rights, without the resources or the job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.unit.cli.bad_input.rows import ROWS, CommandRow
from tests.unit.cli.bad_input.runs import COMMANDS, every, in_a_cluster, of_a_job, refused, run
from tests.unit.cli.stand_in import StandIn, kubeconfig


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
    if row.reports:
        assert (done.code, "does not serve finetunejobs" in done.stdout) == (1, True), done
    else:
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
