"""Reads a user's kubeconfig as kubectl does: joined files, relative paths, contexts, and whom a user impersonates."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

type Section = dict[str, Any]

_KINDS = {"clusters": "cluster", "contexts": "context", "users": "user"}
#: Paths in a cluster or a user, relative to the file that holds it.
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
#: Version of exec whose programs must say whether they use the terminal.
_EXEC_V1 = "client.authentication.k8s.io/v1"
_HEADER_NAME = "!#$&'*+-.^_`|~"
"""Characters of the name of an HTTP header, besides letters and digits."""


@dataclass(frozen=True, slots=True)
class KubeContext:
    """A context of a kubeconfig with the cluster and the user that it names. Absent and empty fields are left out."""

    name: str
    namespace: str
    cluster: Section
    user: Section


@dataclass(slots=True)
class Kubeconfig:
    """Entries of several files by name: of two with one name the first, as for the current context."""

    current: str = ""
    clusters: dict[str, Section] = field(default_factory=dict)
    contexts: dict[str, Section] = field(default_factory=dict)
    users: dict[str, Section] = field(default_factory=dict)

    def context(self, name: str, user: str | None) -> KubeContext:
        """Returns a context; ``user``: whom to impersonate instead. Raises ValueError if kubectl would refuse it."""
        context = self.contexts[name]
        cluster = self.clusters.get(str(context.get("cluster")))
        if cluster is None:
            raise ValueError(f'context "{name}" names a cluster that is not there: {context.get("cluster")}')
        person = dict(self.users.get(str(context.get("user")), {}))
        if user:
            person["as"] = user
        if wrong := list(_faults(cluster, person)):
            raise ValueError(f'context "{name}": {"; ".join(wrong)}')
        if "://" not in cluster["server"]:
            cluster = {**cluster, "server": f"http://{cluster['server']}"}
        return KubeContext(name, str(context.get("namespace") or ""), cluster, person)


def read_kubeconfig(path: str | None) -> Kubeconfig:
    """Reads ``path``, else the files of ``$KUBECONFIG`` that exist, else ``~/.kube/config``.

    Raises OSError and ValueError, and for content of a wrong type also TypeError and AttributeError.
    """
    merged = Kubeconfig()
    names = [path] if path else (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    for name in filter(None, names):
        file = Path(name).expanduser()
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            if path:
                raise
            continue
        _add(merged, file, _parsed(file, text))
    return merged


def _parsed(file: Path, text: str) -> Mapping[str, Any]:
    """Returns the content of a file. JSON is read as such, because YAML refuses its tabs."""
    if text.lstrip().startswith("{"):
        with suppress(json.JSONDecodeError):
            return dict(json.loads(text))
    try:
        content = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not valid YAML: {error}") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{file} is not a mapping")
    return content


def _add(merged: Kubeconfig, file: Path, content: Mapping[str, Any]) -> None:
    merged.current = merged.current or str(content.get("current-context") or "")
    for kind, key in _KINDS.items():
        own: Section = {}
        for entry in content.get(kind) or ():
            name = str(entry.get("name") or "")
            if not name or name in own:
                raise ValueError(
                    f"{file}: {kind}: two entries are named {name}" if name else f"{kind}: no name"
                )
            section = entry.get(key) or {}
            if wrong := ", ".join(_of_wrong_type(section)):
                raise ValueError(f'{file}: {kind}: of "{name}", {wrong} must be text, in quotes')
            own[name] = _resolved(section, file.absolute().parent)
        getattr(merged, kind).update({name: own[name] for name in own if name not in getattr(merged, kind)})


def _of_wrong_type(section: Section) -> Iterator[str]:
    """Yields what kubectl refuses, too. YAML reads ``no`` and ``0`` as other than text, and without the value requests
    would have the rights of the user itself."""
    for key in ("as", "as-uid", "token"):
        if not isinstance(section.get(key, ""), str | None):
            yield key
    lists = {"as-groups": section.get("as-groups"), **(section.get("as-user-extra") or {})}
    for key, values in lists.items():
        if not isinstance(values, list | None) or not all(isinstance(value, str) for value in values or ()):
            yield f"{key}, a list,"


def _resolved(section: Section, folder: Path) -> Section:
    """Returns the fields that are set, with absolute paths."""
    found = {key: value for key, value in section.items() if value}
    found |= {key: str(folder / found[key]) for key in _PATHS if key in found}
    program = found.get("exec", {})
    # A name without a folder is searched in $PATH.
    if os.sep in str(program.get("command", "")):
        found["exec"] = {**program, "command": str(folder / program["command"])}
    return found


def _faults(cluster: Section, user: Section) -> Iterator[str]:
    """Yields what kubectl refuses: it may act as another user, or trust another server, than is meant."""
    if not cluster.get("server"):
        yield "its cluster has no server"
    for key in _PATHS[:3]:
        if {key, f"{key}-data"} <= (cluster if key in cluster else user).keys():
            yield f"{key} and {key}-data are both set: remove one"
    if cluster.get("insecure-skip-tls-verify") and any(key.startswith("certificate-a") for key in cluster):
        yield "insecure-skip-tls-verify ignores certificate-authority: remove one"
    # Without "as", the request would have the rights of the user itself.
    if not user.get("as") and (said := [key for key in user if key.startswith("as-")]):
        yield f"{', '.join(said)} without as: name the user to impersonate"
    if user.get("token") and (user.get("username") or user.get("password")):
        yield "token and username are both set: remove one"
    program = user.get("exec")
    if program and "auth-provider" in user:
        yield "exec and auth-provider are both set: remove one"
    if program and not (program.get("command") and program.get("apiVersion")):
        yield "exec needs command and apiVersion"
    elif program and program["apiVersion"] == _EXEC_V1 and not program.get("interactiveMode"):
        yield "exec needs interactiveMode: Never, IfAvailable or Always"
    if not str(cluster.get("proxy-url", "http://")).startswith(("http://", "https://")):
        yield f"proxy-url {cluster['proxy-url']} is not supported: use http:// or https://"


def token_of(user: Section) -> str:
    """Returns the token of a user: that of its file, which may be replaced at any time, if there is one.

    Raises ValueError if there is none but that of a file that cannot be read, or is empty.
    """
    token, file = str(user.get("token", "")), user.get("tokenFile")
    if file is None:
        return token
    try:
        read = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        if not token:
            raise ValueError(f"the tokenFile {file} cannot be read: {error.strerror}") from error
        return token
    if not read and not token:
        raise ValueError(f"the tokenFile {file} is empty")
    return read or token


def impersonation(user: Section) -> list[tuple[str, str]]:
    """Returns the headers of requests in the name of another user, with the groups, uid and extra that are given."""
    if not user.get("as"):
        return []
    headers = [("Impersonate-User", str(user["as"]))]
    if uid := user.get("as-uid"):
        headers.append(("Impersonate-Uid", str(uid)))
    headers += [("Impersonate-Group", str(group)) for group in user.get("as-groups", ())]
    for key, values in user.get("as-user-extra", {}).items():
        headers += [(f"Impersonate-Extra-{quote(key, safe=_HEADER_NAME)}", str(value)) for value in values]
    return headers
