"""What helm makes of other releases' ClusterRoles; a small server takes the API server's place."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from finetune_operator.cluster.releases import SERVES
from tests.integration.chart.conftest import CHART, Helm

GROUP = "rbac.authorization.k8s.io"
RESOURCE = {"name": "clusterroles", "kind": "ClusterRole", "namespaced": False, "verbs": ["get", "list"]}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "groups": [{"name": GROUP, "versions": [{"groupVersion": f"{GROUP}/v1", "version": "v1"}]}],
    },
    f"/apis/{GROUP}/v1": {"kind": "APIResourceList", "groupVersion": f"{GROUP}/v1", "resources": [RESOURCE]},
}
FORBIDDEN: dict[str, Any] = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "Forbidden",
    "message": "clusterroles is forbidden",
}
HELM = {"meta.helm.sh/release-name": "other", "meta.helm.sh/release-namespace": "theirs"}

type Refusal = Callable[..., str]


class Api(ThreadingHTTPServer):
    """Serves these ClusterRoles, or refuses to list them."""

    roles: tuple[dict[str, Any], ...] = ()
    refuses = False


class Answers(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        path, code = self.path.split("?")[0], 200
        body = DISCOVERY.get(path)
        if path == f"/apis/{GROUP}/v1/clusterroles":
            code = 403 if self.server.refuses else 200
            roles = {"kind": "ClusterRoleList", "apiVersion": f"{GROUP}/v1", "items": self.server.roles}
            body = FORBIDDEN if self.server.refuses else roles
        elif body is None:
            code, body = (
                404,
                {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"},
            )
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture
def api() -> Iterator[Api]:
    with Api(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def refusal(api: Api, helm: Helm, tmp_path: Path) -> Refusal:
    """Returns what helm says where it refuses the release ``ours``, else nothing."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "api",
        "contexts": [{"name": "api", "context": {"cluster": "api", "user": "anyone"}}],
        "clusters": [{"name": "api", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}],
        "users": [{"name": "anyone", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))

    def said(*settings: str) -> str:
        options = [option for setting in settings for option in ("--set", setting)]
        where = ("--namespace", "ours", "--kubeconfig", str(tmp_path / "kubeconfig"), "--dry-run=server")
        done = helm("template", "ours", str(CHART), *where, *options)
        return done.stderr if done.returncode else ""

    return said


def role(name: str, serves: str, **annotations: str) -> dict[str, Any]:
    metadata = {"name": name, "annotations": {SERVES: serves, **annotations}}
    return {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": metadata}


def test_a_namespace_of_another_helm_release_is_refused_and_others_are_not(
    api: Api, refusal: Refusal
) -> None:
    api.roles = (role("other-finetune-operator", "team-a", **HELM),)
    assert "release other in namespace theirs serves team-a already" in refusal("namespaces={team-a,team-b}")
    assert refusal("namespaces={team-b}") == ""


@pytest.mark.parametrize("serves", ["team-a", "team-c,team-a", "*"])
def test_a_release_that_helm_has_not_installed_is_refused_by_its_clusterrole(
    api: Api, refusal: Refusal, serves: str
) -> None:
    """As after Argo CD or `helm template | kubectl apply`."""
    api.roles = (role("argo-finetune-operator", serves),)
    said = refusal("namespaces={team-a}")
    assert "the release with ClusterRole argo-finetune-operator serves team-a already" in said


def test_the_releases_own_role_is_no_other_one_whatever_has_written_it(api: Api, refusal: Refusal) -> None:
    api.roles = (role("ours-finetune-operator", "*"),)
    assert refusal() == ""
    own = {"meta.helm.sh/release-name": "ours", "meta.helm.sh/release-namespace": "ours"}
    api.roles = (role("named-otherwise", "*", **own),)
    assert refusal("fullnameOverride=ours") == ""


def test_without_roles_of_its_own_the_release_needs_no_right_to_list_them(api: Api, refusal: Refusal) -> None:
    api.refuses = True
    assert "clusterroles is forbidden" in refusal()
    assert refusal("rbac.create=false", "crds.install=false", "admissionPolicy.enabled=false") == ""
