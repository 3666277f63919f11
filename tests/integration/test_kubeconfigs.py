"""Forms of a kubeconfig, each beside kubectl's own answer of the real API server: who the user is, and where."""

import base64
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.local_cluster import LocalCluster

OURS = """
import asyncio, json, sys
from finetune_operator.cli.connect.cluster import connect
from finetune_operator.cli.errors import CliError
from finetune_operator.cluster.port import ResourceKind

async def main(path, context, user):
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    async with connect(path=path or None, context=context or None, namespace=None, user=user or None) as found:
        answer = await found.create(ResourceKind("authentication.k8s.io", "v1", "selfsubjectreviews"), review)
        print(json.dumps([answer["status"]["userInfo"], found.namespace]))

try:
    asyncio.run(main(*sys.argv[1:]))
except CliError as error:
    sys.exit(f"{error} Fix: {error.fix}")
"""
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
POD = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass
class Form:
    """A kubeconfig and what is beside it."""

    folder: Path
    server: str
    pki: Path
    token: str
    proxy: str
    files: dict[str, str] = field(default_factory=dict)
    """KUBECONFIG's files by name: below ``folder``."""
    env: dict[str, str] = field(default_factory=dict)
    path: str = ""
    context: str = ""
    user: str = ""
    pod: bool = False
    """Whether a service account is mounted, as in a pod."""

    @property
    def admin(self) -> dict[str, Any]:
        return {"client-certificate": str(self.pki / "admin.crt"), "client-key": str(self.pki / "admin.key")}

    def add(self, user: dict[str, Any] | None, name: str = "config", **cluster: Any) -> None:
        named = {"server": self.server, "certificate-authority": str(self.pki / "ca.crt")} | cluster
        content: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [
                {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "of-context"}}
            ],
            "clusters": [
                {"name": "c", "cluster": {key: value for key, value in named.items() if value is not None}}
            ],
            "users": [{"name": "u", "user": user}] if user is not None else [],
        }
        self.write(name, json.dumps(content))
        self.files[name] = str(self.folder / name)

    def write(self, name: str, text: str | bytes, mode: int = 0o600) -> str:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(mode)
        return str(file)

    def data(self, name: str) -> str:
        return base64.b64encode((self.pki / name).read_bytes()).decode()

    def program(self, name: str, status: dict[str, str], version: str = "v1") -> dict[str, Any]:
        """An exec section, whose program also records its input."""
        credential = {"apiVersion": f"client.authentication.k8s.io/{version}", "kind": "ExecCredential"}
        self.write("answer.json", json.dumps(credential | {"status": status}))
        noted = f'echo "$(echo "$KUBERNETES_EXEC_INFO") $1 $OWN" >> {self.folder}/told'
        self.write(name, f"#!/bin/sh\n{noted}\nexec cat {self.folder}/answer.json\n", 0o700)
        return {
            "apiVersion": credential["apiVersion"],
            "command": name,
            "args": ["an argument"],
            "env": [{"name": "OWN", "value": "variable"}],
            "interactiveMode": "Never",
        }


FORMS: dict[str, Callable[[Form], None]] = {}


def form(make: Callable[[Form], None]) -> Callable[[Form], None]:
    FORMS[make.__name__] = make
    return make


@form
def certificates_by_path(it: Form) -> None:
    it.add(it.admin)


@form
def certificates_inline(it: Form) -> None:
    user = {"client-certificate-data": it.data("admin.crt"), "client-key-data": it.data("admin.key")}
    it.add(user, **{"certificate-authority": None, "certificate-authority-data": it.data("ca.crt")})


@form
def certificates_by_relative_path(it: Form) -> None:
    for name in ("admin.crt", "admin.key", "ca.crt"):
        it.write(f"deep/{name}", (it.pki / name).read_bytes())
    user = {"client-certificate": "admin.crt", "client-key": "./admin.key"}
    it.add(user, "deep/config", **{"certificate-authority": "../deep/ca.crt"})


@form
def certificate_without_key(it: Form) -> None:
    it.add({"client-certificate": str(it.pki / "admin.crt")})


@form
def empty_fields(it: Form) -> None:
    empty = {
        "token": "",
        "tokenFile": "",
        "client-certificate-data": "",
        "as": "",
        "as-groups": [],
        "exec": None,
    }
    it.add(it.admin | empty, **{"certificate-authority-data": "", "tls-server-name": "", "proxy-url": ""})


@form
def token(it: Form) -> None:
    it.add({"token": it.token})


@form
def token_file_with_a_newline(it: Form) -> None:
    it.add({"tokenFile": it.write("token", f"{it.token}\n")})


@form
def token_file_by_relative_path(it: Form) -> None:
    it.write("deep/token", f"\n{it.token} \n")
    it.add({"tokenFile": "token"}, "deep/config")


@form
def token_and_token_file(it: Form) -> None:
    it.add({"token": "outdated", "tokenFile": it.write("token", it.token)})


@form
def token_and_a_token_file_that_is_gone(it: Form) -> None:
    it.add({"token": it.token, "tokenFile": "gone"})


@form
def token_file_that_is_gone(it: Form) -> None:
    it.add({"tokenFile": "gone"})


@form
def token_file_that_is_empty(it: Form) -> None:
    it.add({"tokenFile": it.write("token", "\n")})


@form
def token_and_password(it: Form) -> None:
    it.add({"token": it.token, "username": "a", "password": "b"})


@form
def token_over_certificates(it: Form) -> None:
    it.add(it.admin | {"token": it.token})


@form
def impersonated_user(it: Form) -> None:
    it.add(it.admin | {"as": "alice"})


@form
def impersonated_groups_uid_and_extra(it: Form) -> None:
    extra = {"acme.com/Ünder%score": ["x", "y z"], "reason": ["holiday"]}
    groups = {"as-groups": ["dev", "ops,qa"], "as-uid": "42", "as-user-extra": extra}
    it.add(it.admin | {"as": "alice"} | groups)


@form
def impersonated_groups_without_a_user(it: Form) -> None:
    it.add(it.admin | {"as-groups": ["dev"]})


@form
def impersonated_groups_with_the_user_of_the_option(it: Form) -> None:
    it.add(it.admin | {"as-groups": ["dev"]})
    it.user = "bob"


@form
def impersonated_user_of_the_option_instead(it: Form) -> None:
    it.add(it.admin | {"as": "alice", "as-groups": ["dev"], "as-uid": "42"})
    it.user = "bob"


@form
def impersonation_that_is_forbidden(it: Form) -> None:
    it.add({"token": it.token, "as": "alice"})


@form
def program_in_the_path(it: Form) -> None:
    it.add({"exec": it.program("bin/login", {"token": it.token}) | {"command": "login"}})
    it.env["PATH"] = f"{it.folder}/bin:/usr/bin:/bin"


@form
def program_by_relative_path(it: Form) -> None:
    it.add({"exec": it.program("login", {"token": it.token}) | {"command": "./login"}})


@form
def program_without_a_folder_is_not_beside_the_file(it: Form) -> None:
    it.add({"exec": it.program("login", {"token": it.token})})


@form
def program_with_cluster_info(it: Form) -> None:
    program = it.program("login", {"token": it.token}) | {"command": "./login", "provideClusterInfo": True}
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "acme"}}
    more = {"tls-server-name": "localhost", "extensions": [extension, {"name": "other", "extension": 1}]}
    it.add({"exec": program}, **more)


@form
def program_with_cluster_info_of_a_beta_version(it: Form) -> None:
    program = it.program("login", {"token": it.token}, "v1beta1") | {"command": "./login"}
    del program["interactiveMode"]
    inline = {"certificate-authority": None, "certificate-authority-data": it.data("ca.crt")}
    it.add({"exec": program | {"provideClusterInfo": True}}, **inline)


@form
def program_that_prints_a_certificate(it: Form) -> None:
    names = {"clientCertificateData": "admin.crt", "clientKeyData": "admin.key"}
    status = {key: (it.pki / name).read_text() for key, name in names.items()}
    it.add({"exec": it.program("login", status) | {"command": "./login"}})


@form
def program_that_prints_a_certificate_without_its_key(it: Form) -> None:
    status = {"clientCertificateData": (it.pki / "admin.crt").read_text()}
    it.add({"exec": it.program("login", status) | {"command": "./login"}})


@form
def program_of_another_version(it: Form) -> None:
    program = it.program("login", {"token": it.token}, "v1beta1") | {"command": "./login"}
    it.add({"exec": program | {"apiVersion": "client.authentication.k8s.io/v1"}})


@form
def program_that_does_not_say_whether_it_asks(it: Form) -> None:
    program = it.program("login", {"token": it.token}) | {"command": "./login"}
    del program["interactiveMode"]
    it.add({"exec": program})


@form
def program_that_must_ask(it: Form) -> None:
    it.add(
        {
            "exec": it.program("login", {"token": it.token})
            | {"command": "./login", "interactiveMode": "Always"}
        }
    )


@form
def program_and_token(it: Form) -> None:
    program = it.program("login", {"token": "never asked for"}) | {"command": "./login"}
    it.add({"exec": program, "token": it.token})


@form
def program_and_certificates(it: Form) -> None:
    it.add(it.admin | {"exec": it.program("login", {"token": it.token}) | {"command": "./login"}})


@form
def joined_files(it: Form) -> None:
    it.add(it.admin, "first")
    it.add({"token": "second, which loses"}, "second")
    it.env["KUBECONFIG"] = ":".join([f"{it.folder}/gone", it.files["first"], "", it.files["second"]])


@form
def joined_files_of_which_each_has_a_part(it: Form) -> None:
    it.add({"tokenFile": "token"}, "deep/config")
    it.write("deep/token", it.token)
    content = json.loads((it.folder / "deep/config").read_text())
    cluster, context = {"clusters": content.pop("clusters")}, {"contexts": content.pop("contexts")}
    it.write("deep/config", json.dumps(content | {"current-context": "elsewhere"}))
    it.write("contexts", json.dumps(context | {"current-context": "here"}))
    it.write("clusters", json.dumps(cluster | {"current-context": None, "users": None}))
    names = ("contexts", "clusters", "deep/config")
    it.env["KUBECONFIG"] = ":".join(f"{it.folder}/{name}" for name in names)


@form
def other_context(it: Form) -> None:
    it.add(it.admin)
    content = json.loads((it.folder / "config").read_text())
    content["contexts"].append({"name": "there", "context": {"cluster": "c", "user": "t"}})
    content["users"].append({"name": "t", "user": {"token": it.token}})
    it.path, it.context = it.write("config", json.dumps(content)), "there"


@form
def context_that_is_not_there(it: Form) -> None:
    it.add(it.admin)
    it.context = "gone"


@form
def json_with_tabs(it: Form) -> None:
    it.add(it.admin)
    content = json.loads((it.folder / "config").read_text())
    it.write("config", json.dumps(content, indent="\t"))


@form
def path_in_the_home_folder(it: Form) -> None:
    it.add(it.admin, ".kube/config")
    it.env |= {"HOME": str(it.folder), "KUBECONFIG": ""}


@form
def option_for_a_file_that_is_gone(it: Form) -> None:
    it.path = str(it.folder / "gone")


@form
def proxy(it: Form) -> None:
    it.add(it.admin, **{"proxy-url": it.proxy})


@form
def proxy_that_does_not_listen(it: Form) -> None:
    it.add(it.admin, **{"proxy-url": "http://127.0.0.1:9"})


@form
def name_of_the_server(it: Form) -> None:
    it.add(it.admin, **{"tls-server-name": "localhost"})


@form
def name_of_another_server(it: Form) -> None:
    it.add(it.admin, **{"tls-server-name": "elsewhere"})


@form
def server_that_nothing_certifies(it: Form) -> None:
    it.add(it.admin, **{"certificate-authority": None})


@form
def server_that_is_not_verified(it: Form) -> None:
    it.add(it.admin, **{"certificate-authority": None, "insecure-skip-tls-verify": True})


@form
def server_that_is_not_verified_and_certified(it: Form) -> None:
    it.add(it.admin, **{"insecure-skip-tls-verify": True})


@form
def authority_twice(it: Form) -> None:
    it.add(it.admin, **{"certificate-authority-data": it.data("ca.crt")})


@form
def server_without_a_scheme(it: Form) -> None:
    it.add(it.admin, server=it.server.removeprefix("https://"))


@form
def pod(it: Form) -> None:
    it.pod = True
    it.env["KUBECONFIG"] = ""


@form
def pod_with_an_empty_kubeconfig(it: Form) -> None:
    it.pod = True
    it.env["KUBECONFIG"] = it.write("config", "")


@form
def pod_with_a_namespace_of_its_own(it: Form) -> None:
    it.pod = True
    it.env |= {"KUBECONFIG": "", "POD_NAMESPACE": "of-variable"}


@form
def pod_with_a_kubeconfig(it: Form) -> None:
    it.pod = True
    it.add(it.admin)


@form
def pod_with_a_kubeconfig_without_a_namespace(it: Form) -> None:
    it.pod = True
    it.add(it.admin)
    content = json.loads((it.folder / "config").read_text())
    del content["contexts"][0]["context"]["namespace"]
    it.write("config", json.dumps(content))


@form
def pod_with_a_file_that_is_gone(it: Form) -> None:
    it.pod = True
    it.path = str(it.folder / "gone")


@pytest.fixture(scope="module")
def proxy_url() -> Iterator[str]:
    """A proxy for CONNECT alone."""
    listener = socket.create_server(("127.0.0.1", 0))

    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while part := source.recv(65536):
                target.sendall(part)
        except OSError:
            pass
        target.close()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            host, port = client.recv(65536).split()[1].decode().rsplit(":", 1)
            server = socket.create_connection((host, int(port)))
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for ends in ((client, server), (server, client)):
                threading.Thread(target=copy, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def run(it: Form, *command: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(it.folder / "nobody"), **it.env}
    env.setdefault("KUBECONFIG", ":".join(it.files.values()))
    if it.pod:
        host, port = it.server.removeprefix("https://").split(":")
        env |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        mount = f'mount -t tmpfs none /run && mkdir -p {POD} && cp {it.folder}/account/* {POD} && exec "$@"'
        words = ["unshare", "-m", "sh", "-c", mount, "sh", *words]
    return subprocess.run(
        words, env=env, cwd=it.folder.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_kubeconfig_means_what_it_means_to_kubectl(
    cluster: LocalCluster, namespace: str, name: str, proxy_url: str, tmp_path: Path
) -> None:
    token = cluster.kubectl("create", "token", "ft-cpu", "-n", namespace).strip()
    folder = tmp_path / "form"
    it = Form(folder, cluster.server, cluster.state.pki, token, proxy_url)
    folder.mkdir()
    FORMS[name](it)
    if it.pod:
        it.write("account/token", token)
        it.write("account/ca.crt", (it.pki / "ca.crt").read_bytes())
        it.write("account/namespace", "of-pod")
        if run(it, "true").returncode:
            pytest.skip("needs the right to mount")
    options = {"--kubeconfig": it.path, "--context": it.context, "--as": it.user}
    given = [f"{option}={value}" for option, value in options.items() if value]
    kubectl = cluster.kubectl_program
    review = it.write(
        "review", json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    )
    whoami = run(it, kubectl, *given, "create", "--raw", REVIEWS, "-f", review)
    told = _told(it)
    ours = run(it, sys.executable, "-c", OURS, it.path, it.context, it.user)
    assert _told(it) == told
    if whoami.returncode:
        assert ours.returncode == 1, (ours, whoami)
        assert "Traceback" not in ours.stderr
        assert "Fix: " in ours.stderr
        return
    assert ours.returncode == 0, (ours, whoami)
    item = it.write("item", json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}))
    made = run(
        it, kubectl, *given, "create", "-f", item, "--dry-run=client", "--validate=false", "-o", "json"
    )
    expected = [
        json.loads(whoami.stdout)["status"]["userInfo"],
        json.loads(made.stdout)["metadata"].get("namespace"),
    ]
    assert json.loads(ours.stdout) == [expected[0], expected[1] or "default"]


def _told(it: Form) -> object:
    """Returns the input of programs since the last call."""
    file = it.folder / "told"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return [[json.loads(line.rsplit("}", 1)[0] + "}"), line.rsplit("}", 1)[1]] for line in lines]
