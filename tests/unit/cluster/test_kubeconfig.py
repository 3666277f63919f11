"""A kubeconfig without an API server; tests/integration/test_kubeconfigs.py has every form beside kubectl's answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetune_operator.cluster import connect
from finetune_operator.cluster.connect import (
    CredentialProgramFailed,
    NoCredentials,
    UserContext,
    user_context,
)
from finetune_operator.cluster.kubeconfig import impersonation

SERVER = "https://127.0.0.1:6443"


@pytest.fixture(autouse=True)
def outside_of_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "POD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def written(folder: Path, user: dict[str, Any], name: str = "config", **cluster: Any) -> str:
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    file = folder / name
    file.write_text(json.dumps(content))
    return str(file)


def headers(found: UserContext) -> list[tuple[str, str]]:
    sent: list[tuple[str, str]] = (found.configuration.client_session_kwargs or {})["headers"]
    return sent


async def test_a_kubeconfig_of_another_user_acts_as_that_user(tmp_path: Path) -> None:
    user = {
        "token": "t",
        "as": "alice",
        "as-groups": ["a", "b"],
        "as-uid": "7",
        "as-user-extra": {"x/y": ["1", "2"]},
    }
    expected = [
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-x%2Fy", "1"),
        ("Impersonate-Extra-x%2Fy", "2"),
    ]
    path = written(tmp_path, user)
    assert headers(await user_context(path)) == [("Impersonate-User", "alice"), *expected]
    assert headers(await user_context(path, user="bob")) == [("Impersonate-User", "bob"), *expected]


def test_no_user_is_impersonated_unless_named() -> None:
    assert impersonation({"token": "t"}) == []


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "groups without a user": ({"as-groups": ["admins"]}, {}, "as-groups without as"),
    "a token and a password": ({"token": "t", "password": "p"}, {}, "token and username are both set"),
    "a token file that is gone": ({"tokenFile": "gone"}, {}, "gone cannot be read"),
    "an authority twice": (
        {},
        {"certificate-authority": "a", "certificate-authority-data": "YQ=="},
        "both set",
    ),
    "an authority that is ignored": (
        {},
        {"certificate-authority": "a", "insecure-skip-tls-verify": True},
        "ignores",
    ),
    "a proxy of another kind": ({}, {"proxy-url": "socks5://127.0.0.1:1"}, "is not supported: use http://"),
    "no server": ({}, {"server": ""}, "has no server"),
    "a program without a command": ({"exec": {"apiVersion": "v1"}}, {}, "exec needs command and apiVersion"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_may_not_be_meant_is_refused(tmp_path: Path, case: str) -> None:
    user, cluster, said = REFUSED[case]
    with pytest.raises(NoCredentials, match=said):
        await user_context(written(tmp_path, user, **cluster))


async def test_a_program_that_prints_nonsense_is_named(tmp_path: Path) -> None:
    program = {"command": "/bin/echo", "args": ["no"], "apiVersion": "client.authentication.k8s.io/v1beta1"}
    with pytest.raises(CredentialProgramFailed, match="/bin/echo printed no ExecCredential"):
        await user_context(written(tmp_path, {"exec": program}))


async def test_without_a_current_context_a_pod_uses_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoCredentials, match="there is no current context"):
        await user_context()
    for name, text in {"token": "of-pod\n", "ca.crt": "a certificate", "namespace": "team-a\n"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(connect, "DEFAULT_FOLDER", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = await user_context(user="alice")
    assert (found.configuration.host, found.namespace) == ("https://10.0.0.1:443", "team-a")
    assert (await found.configuration.auth_settings())["BearerToken"]["value"].split()[1] == "of-pod"
    assert headers(found) == [("Impersonate-User", "alice")]
    assert (await user_context(written(tmp_path, {"token": "t"}))).configuration.host == SERVER
    with pytest.raises(NoCredentials, match="gone"):
        await user_context(str(tmp_path / "gone"))


@pytest.mark.parametrize(
    "user",
    [
        {"as": False}, {"as": 0}, {"as": []}, {"as": 123}, {"as": "alice", "as-uid": 7}, {"token": 0},
        {"as": "alice", "as-groups": "view"}, {"as": "alice", "as-groups": [1]},
        {"as": "alice", "as-user-extra": {"scopes": "view"}},
    ],
    ids=str,
)  # fmt: skip
async def test_a_user_of_another_type_than_text_is_refused_and_not_left_out(
    tmp_path: Path, user: dict[str, Any]
) -> None:
    with pytest.raises(NoCredentials, match="must be text, in quotes"):
        await user_context(written(tmp_path, user))
