"""Cloud Storage access control: roles on buckets and managed folders, and the permissions that a request needs. Pure.

Covers the part of the JSON API that Google's clients, tensorstore and gcsfs use. A request that is not understood needs
a permission that no role has.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

GET, LIST, CREATE, UPDATE, DELETE = (
    f"storage.objects.{verb}" for verb in ("get", "list", "create", "update", "delete")
)
BUCKET = "storage.buckets.get"
#: Permission of requests that are not understood; no role has it.
UNKNOWN = "unknown"

#: The roles that docs/install-gke.md grants -> their permissions on objects and buckets.
ROLES: Mapping[str, frozenset[str]] = {
    "roles/storage.objectUser": frozenset({GET, LIST, CREATE, UPDATE, DELETE}),
    "roles/storage.objectViewer": frozenset({GET, LIST}),
    # the custom role of the installation guide
    "finetuneBucketReader": frozenset({BUCKET}),
}
#: HTTP method of a request for one object -> permission that it needs.
_OBJECT_METHODS = {"GET": GET, "DELETE": DELETE, "PATCH": UPDATE, "PUT": UPDATE}
#: Bytes of an upload that are searched for the object's name.
_METADATA_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One entry of an IAM policy of a bucket, or of a managed folder in it."""

    account: str
    """``namespace/serviceaccount``."""
    role: str
    bucket: str
    folder: str = ""
    """Ends with a slash; empty if the policy is the bucket's."""

    def gives(self, account: str, need: "ResourcePermission") -> bool:
        return (
            (account, need.bucket) == (self.account, self.bucket)
            and need.permission in ROLES[self.role]
            # a bucket is in no folder, and a listing is in one if its prefix is
            and need.name.startswith(self.folder)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePermission:
    """A permission on a resource."""

    permission: str
    bucket: str
    name: str = ""
    """Name of the object, or prefix of the listing; empty for the bucket itself."""


def is_granted(grants: Iterable[Grant], account: str, need: ResourcePermission) -> bool:
    return any(grant.gives(account, need) for grant in grants)


def required_permissions(
    method: str, path: str, query: Mapping[str, str], body: bytes
) -> tuple[ResourcePermission, ...]:
    """Returns the permissions that a request needs; ``UNKNOWN`` alone if the request is not understood.

    Omits the DELETE that replacing an object also needs, since every role with CREATE has it here.

    Args:
        method: HTTP method.
        path: not decoded, so an object's name is one segment of it.
        query: decoded parameters.
        body: the whole body.
    """
    kind, _, rest = path.strip("/").rpartition("storage/v1/b/")
    match (kind, method, *rest.split("/")):
        case "", "GET", bucket if bucket:
            return (ResourcePermission(permission=BUCKET, bucket=bucket),)
        case "", "GET", bucket, "o":
            return (ResourcePermission(permission=LIST, bucket=bucket, name=query.get("prefix", "")),)
        case "upload/", "POST", bucket, "o" if name := query.get("name") or _name_in(body):
            return (ResourcePermission(permission=CREATE, bucket=bucket, name=name),)
        case "", "POST", bucket, "o", name, "compose":
            sources = [source["name"] for source in json.loads(body)["sourceObjects"]]
            return (
                ResourcePermission(permission=CREATE, bucket=bucket, name=unquote(name)),
                *(ResourcePermission(permission=GET, bucket=bucket, name=source) for source in sources),
            )
        case "", "POST", bucket, "o", name, "rewriteTo" | "copyTo", "b", other, "o", target:
            return (
                ResourcePermission(permission=GET, bucket=bucket, name=unquote(name)),
                ResourcePermission(permission=CREATE, bucket=other, name=unquote(target)),
            )
        case "", _, bucket, "o", name if method in _OBJECT_METHODS:
            permission = _OBJECT_METHODS[method]
            return (ResourcePermission(permission=permission, bucket=bucket, name=unquote(name)),)
        case "download/", "GET", bucket, "o", name:
            return (ResourcePermission(permission=GET, bucket=bucket, name=unquote(name)),)
        case _:
            return (ResourcePermission(permission=UNKNOWN, bucket="", name=f"{method} {path}"),)


def _name_in(body: bytes) -> str:
    """The object's name in the metadata at the beginning of an upload: its only part, or the first of two."""
    start = body.find(b"{", 0, _METADATA_LIMIT)
    try:
        found, _ = json.JSONDecoder().raw_decode(
            body[max(start, 0) : _METADATA_LIMIT].decode(errors="replace")
        )
    except ValueError:
        return ""
    name = found.get("name", "") if isinstance(found, dict) else ""
    return name if isinstance(name, str) else ""
