"""Runs the program that a kubeconfig names for credentials (``exec``), by Kubernetes' protocol for such programs."""

import asyncio
import base64
import json
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from pathlib import Path
from typing import Any

type Section = Mapping[str, Any]

#: Fields of a cluster that a program gets on request, under the same names.
_CLUSTER = (
    "server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url",
    "disable-compression",
)  # fmt: skip
#: Name of the extension of a cluster that is meant for programs.
_EXTENSION = "client.authentication.k8s.io/exec"


class ProgramError(Exception):
    """The program does not exist, has failed, or has printed no credentials."""


async def program_credentials(program: Section, cluster: Section) -> dict[str, str]:
    """Returns the fields of a kubeconfig's user that hold the printed credentials. Raises ProgramError."""
    command, mode = str(program["command"]), program.get("interactiveMode", "IfAvailable")
    interactive = mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
    if mode == "Always" and not interactive:
        raise ProgramError(f"{command} needs a terminal: standard input is none")
    spec: dict[str, Any] = {"interactive": interactive}
    if program.get("provideClusterInfo"):
        spec["cluster"] = _cluster(cluster)
    info = {"apiVersion": program["apiVersion"], "kind": "ExecCredential", "spec": spec}
    given = {str(each["name"]): str(each.get("value", "")) for each in program.get("env") or ()}
    found = shutil.which(command)
    if found is None:
        raise ProgramError(
            f"{command} is not there, or not executable. {program.get('installHint', '')}".strip()
        )
    # Captured for the message of an error, unless a person is asked for something.
    process = await asyncio.create_subprocess_exec(
        found,
        *map(str, program.get("args") or ()),
        env={**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)},
        stdin=None if interactive else DEVNULL,
        stdout=PIPE,
        stderr=None if interactive else PIPE,
    )
    printed, said = await process.communicate()
    if process.returncode:
        words = (said or b"").decode(errors="replace").strip()
        raise ProgramError(f"{command} ended with exit code {process.returncode}. {words}".strip())
    return _credentials(command, printed, str(program["apiVersion"]))


def _cluster(cluster: Section) -> dict[str, Any]:
    shown = {key: cluster[key] for key in _CLUSTER if key in cluster}
    if file := cluster.get("certificate-authority"):
        shown["certificate-authority-data"] = base64.b64encode(Path(file).read_bytes()).decode()
    own = (
        each.get("extension") for each in cluster.get("extensions") or () if each.get("name") == _EXTENSION
    )
    shown["config"] = next(own, None)
    return shown


def _credentials(command: str, printed: bytes, version: str) -> dict[str, str]:
    try:
        answer = json.loads(printed)
        spoken, status = answer["apiVersion"], answer["status"]
        token, certificate, key = map(status.get, ("token", "clientCertificateData", "clientKeyData"))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ProgramError(f"{command} printed no ExecCredential with a status") from error
    if spoken != version:
        raise ProgramError(f"{command} printed apiVersion {spoken}, expected {version}")
    if bool(certificate) != bool(key) or not (token or certificate):
        raise ProgramError(f"{command} printed neither a token nor a certificate with its key")
    found = {"token": token, "client-certificate-data": certificate, "client-key-data": key}
    return {
        name: value if name == "token" else base64.b64encode(value.encode()).decode()
        for name, value in found.items()
        if value
    }
