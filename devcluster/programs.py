"""The programs of the local cluster: the Go package that each is built from, and how to recognize a suitable one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

KUBERNETES_VERSION = "1.36.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoProgram:
    """One program. ``seconds`` is its measured cold build on two cores, in build order, for the progress display."""

    name: str
    package: str
    seconds: int
    version: str
    version_arguments: tuple[str, ...] = ()
    """Prints the version; empty if the program can't, so that only our own build is trusted."""
    module: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Manifests of the program's module that are kept beside it: name under ``share/<program>/`` -> path in the module.
    """


#: In the order that shares most: the API server compiles nearly all the code that the others need.
PROGRAMS: tuple[GoProgram, ...] = (
    GoProgram(
        name="kube-apiserver",
        package="k8s.io/kubernetes/cmd/kube-apiserver",
        seconds=200,
        version=KUBERNETES_VERSION,
        version_arguments=("--version",),
    ),
    GoProgram(
        name="kube-controller-manager",
        package="k8s.io/kubernetes/cmd/kube-controller-manager",
        seconds=55,
        version=KUBERNETES_VERSION,
        version_arguments=("--version",),
    ),
    GoProgram(
        name="kube-scheduler",
        package="k8s.io/kubernetes/cmd/kube-scheduler",
        seconds=5,
        version=KUBERNETES_VERSION,
        version_arguments=("--version",),
    ),
    GoProgram(
        name="kubectl",
        package="k8s.io/kubernetes/cmd/kubectl",
        seconds=20,
        version=KUBERNETES_VERSION,
        version_arguments=("version", "--client"),
    ),
    GoProgram(
        name="etcd",
        package="go.etcd.io/etcd/server/v3",
        seconds=20,
        version="3.6.8",
        version_arguments=("--version",),
    ),
    GoProgram(
        name="jobset",
        package="sigs.k8s.io/jobset",
        seconds=10,
        version="0.12.0",
        module="sigs.k8s.io/jobset",
        files={
            "crd.yaml": "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
            "role.yaml": "config/components/rbac/role.yaml",
            "webhooks.yaml": "config/components/webhook/manifests.yaml",
        },
    ),
    GoProgram(
        name="helm",
        package="helm.sh/helm/v3/cmd/helm",
        seconds=15,
        version="3.22.0",
        version_arguments=("version", "--short"),
    ),
    GoProgram(
        name="fake-gcs-server", package="github.com/fsouza/fake-gcs-server", seconds=30, version="1.56.1"
    ),
    GoProgram(
        name="kwok",
        package="sigs.k8s.io/kwok/cmd/kwok",
        seconds=12,
        version="0.8.0",
        module="sigs.k8s.io/kwok",
        files={
            "node-initialize.yaml": "kustomize/stage/node/fast/node-initialize.yaml",
            "pod-ready.yaml": "kustomize/stage/pod/fast/pod-ready.yaml",
            "pod-delete.yaml": "kustomize/stage/pod/fast/pod-delete.yaml",
        },
    ),
    GoProgram(
        name="kueue",
        package="sigs.k8s.io/kueue/cmd/kueue",
        seconds=65,
        version="0.19.2",
        module="sigs.k8s.io/kueue",
        files={"components": "config/components"},
    ),
    GoProgram(
        name="kubelet",
        package="k8s.io/kubernetes/cmd/kubelet",
        seconds=60,
        version=KUBERNETES_VERSION,
        version_arguments=("--version",),
    ),
    GoProgram(
        name="kube-proxy",
        package="k8s.io/kubernetes/cmd/kube-proxy",
        seconds=10,
        version=KUBERNETES_VERSION,
        version_arguments=("--version",),
    ),
)

BY_NAME: Mapping[str, GoProgram] = {program.name: program for program in PROGRAMS}
#: Built only on request. `up` starts those of the first two that are requested; tests/images starts the others.
ON_REQUEST = frozenset({"kwok", "kueue", "kubelet", "kube-proxy"})


def selection(extra: Iterable[str] = ()) -> tuple[GoProgram, ...]:
    """The cluster's own programs and the named optional ones, in build order. Raises ValueError for an unknown name."""
    wanted = set(extra)
    if strange := wanted - ON_REQUEST:
        raise ValueError(
            f"--with {','.join(sorted(strange))}: unknown optional program; expected one of "
            f"{', '.join(sorted(ON_REQUEST))}"
        )
    return tuple(program for program in PROGRAMS if program.name not in ON_REQUEST or program.name in wanted)
