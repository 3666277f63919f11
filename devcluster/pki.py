"""The cluster's certificates: one CA, one serving certificate, one client certificate per identity. Made by openssl."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

DAYS = 365
#: Certificates that expire within this many seconds are renewed at the next start.
RENEW_SECONDS = 30 * 24 * 3600
SERVING_NAMES = "DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1"
#: kubeconfig user -> certificate subject. RBAC is on: each has only the permissions bound to its name.
IDENTITIES: Mapping[str, str] = {
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "jobset": "/CN=jobset-controller-manager",
    "kueue": "/CN=kueue-controller-manager",
    "kwok": "/CN=devcluster-kwok",
    "node-agent": "/CN=devcluster-node-agent",
    # what the API server presents to the node agent when it fetches logs
    "apiserver-kubelet-client": "/CN=kube-apiserver-kubelet-client",
}


class PkiError(Exception):
    """openssl is missing or fails."""


def ensure(folder: Path) -> None:
    """Creates all of ``folder``: ca, tls (serving) and one pair per identity, plus the service account key pair."""
    if (folder / "sa.pub").exists() and all(
        _valid(folder / f"{name}.crt") for name in ("ca", "tls", *IDENTITIES)
    ):
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for old in folder.iterdir():
        old.unlink()
    _authority(folder)
    signed(folder, "tls", "/CN=localhost", f"subjectAltName={SERVING_NAMES}")
    for name, subject in IDENTITIES.items():
        signed(folder, name, subject, "extendedKeyUsage=clientAuth")
    _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", folder / "sa.key")
    _openssl("pkey", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub")
    for key in folder.glob("*.key"):
        key.chmod(0o600)


def kubeconfig(folder: Path, user: str, server: str) -> str:
    """A kubeconfig (JSON is YAML) with absolute paths, as clients resolve relative ones against their own folder."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "finetune-local",
            "contexts": [{"name": "finetune-local", "context": {"cluster": "finetune-local", "user": user}}],
            "clusters": [
                {
                    "name": "finetune-local",
                    "cluster": {"server": server, "certificate-authority": str(folder / "ca.crt")},
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate": str(folder / f"{user}.crt"),
                        "client-key": str(folder / f"{user}.key"),
                    },
                }
            ],
        },
        indent=1,
    )


def signed(folder: Path, name: str, subject: str, extension: str) -> None:
    """Writes ``name``.crt and ``name``.key, signed by the CA of ``folder``."""
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    extensions.write_text(extension)
    _openssl("req", *_EC, "-keyout", folder / f"{name}.key", "-out", request, "-subj", subject)
    _openssl(
        "x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial",
        "-days", DAYS, "-extfile", extensions, "-out", folder / f"{name}.crt",
    )  # fmt: skip
    request.unlink()
    extensions.unlink()


_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _authority(folder: Path) -> None:
    _openssl(
        "req", "-x509", *_EC, "-keyout", folder / "ca.key", "-out", folder / "ca.crt",
        "-days", DAYS, "-subj", "/CN=finetune-local-ca",
    )  # fmt: skip


def _valid(certificate: Path) -> bool:
    if not certificate.exists():
        return False
    command = ["openssl", "x509", "-checkend", str(RENEW_SECONDS), "-noout", "-in", str(certificate)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _openssl(*arguments: object) -> None:
    try:
        done = subprocess.run(
            ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError:
        raise PkiError("openssl is not installed; the local cluster makes its certificates with it") from None
    if done.returncode != 0:
        raise PkiError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
