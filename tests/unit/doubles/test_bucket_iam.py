"""Which right a request to Cloud Storage needs, and who has it."""

import json

import pytest

from tests.doubles.bucket_iam import (
    BUCKET,
    CREATE,
    DELETE,
    GET,
    LIST,
    UNKNOWN,
    UPDATE,
    Grant,
    ResourcePermission,
    is_granted,
    required_permissions,
)

ACCOUNT = "team-a/ft-cpu"
OBJECTS = "/storage/v1/b/bucket/o"
NAME = "team-a%2Fx%20%23%252F"
METADATA = json.dumps({"name": "team-a/x"}).encode()


def need(permission: str, name: str = "", bucket: str = "bucket") -> ResourcePermission:
    return ResourcePermission(permission=permission, bucket=bucket, name=name)


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "expected"),
    [
        ("GET", "/storage/v1/b/bucket", {}, b"", [need(BUCKET)]),
        ("GET", OBJECTS, {}, b"", [need(LIST)]),
        ("GET", OBJECTS, {"prefix": "team-a/"}, b"", [need(LIST, "team-a/")]),
        ("GET", f"{OBJECTS}/{NAME}", {"alt": "media"}, b"", [need(GET, "team-a/x #%2F")]),
        ("GET", f"/download{OBJECTS}/{NAME}", {}, b"", [need(GET, "team-a/x #%2F")]),
        ("DELETE", f"{OBJECTS}/{NAME}", {}, b"", [need(DELETE, "team-a/x #%2F")]),
        ("PATCH", f"{OBJECTS}/{NAME}", {}, b"{}", [need(UPDATE, "team-a/x #%2F")]),
        (
            "POST",
            f"/upload{OBJECTS}",
            {"uploadType": "media", "name": "team-a/x"},
            b"",
            [need(CREATE, "team-a/x")],
        ),
        ("POST", f"/upload{OBJECTS}", {"uploadType": "resumable"}, METADATA, [need(CREATE, "team-a/x")]),
        (
            "POST",
            f"/upload{OBJECTS}",
            {"uploadType": "multipart"},
            b"--==\r\ncontent-type: application/json\r\n\r\n" + METADATA + b"\r\n--==\r\n\r\n{}",
            [need(CREATE, "team-a/x")],
        ),
        (
            "POST",
            f"{OBJECTS}/team-b%2Fx/rewriteTo/b/other/o/team-a%2Fx",
            {},
            b"",
            [need(GET, "team-b/x"), need(CREATE, "team-a/x", "other")],
        ),
        (
            "POST",
            f"{OBJECTS}/team-a%2Fx/compose",
            {},
            b'{"sourceObjects": [{"name": "team-b/x"}]}',
            [need(CREATE, "team-a/x"), need(GET, "team-b/x")],
        ),
    ],
)
def test_what_a_request_needs(
    method: str, path: str, query: dict[str, str], body: bytes, expected: list[ResourcePermission]
) -> None:
    assert list(required_permissions(method, path, query, body)) == expected


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/storage/v1/b", b""),
        ("POST", "/storage/v1/b", b"{}"),
        ("DELETE", "/storage/v1/b/bucket", b""),
        ("PUT", "/storage/v1/b/bucket/iam", b"{}"),
        ("GET", "/bucket/team-a/x", b""),
        ("POST", "/batch/storage/v1", b""),
        ("POST", f"/upload{OBJECTS}", b"no metadata"),
        ("POST", f"/upload{OBJECTS}", b'{"name": 1}'),
        ("GET", f"{OBJECTS}/team-a/x", b""),
    ],
)
def test_what_is_not_understood_is_granted_to_no_account(method: str, path: str, body: bytes) -> None:
    (asked,) = required_permissions(method, path, {}, body)
    assert asked.permission == UNKNOWN


def test_a_folder_gives_what_begins_with_it_and_nothing_of_the_bucket() -> None:
    grants = [Grant(account=ACCOUNT, role="roles/storage.objectUser", bucket="bucket", folder="team-a/")]
    for permission, name in (
        (GET, "team-a/x"),
        (LIST, "team-a/"),
        (DELETE, "team-a/job/x"),
        (CREATE, "team-a/x"),
    ):
        assert is_granted(grants, ACCOUNT, need(permission, name))
    for permission, name in (
        (GET, "team-ab/x"),
        (LIST, "team-a"),
        (LIST, ""),
        (GET, "team-b/team-a/x"),
        (BUCKET, ""),
    ):
        assert not is_granted(grants, ACCOUNT, need(permission, name))
    assert not is_granted(grants, "team-b/ft-cpu", need(GET, "team-a/x"))
    assert not is_granted(grants, ACCOUNT, need(GET, "team-a/x", "other"))


def test_a_viewer_writes_nothing() -> None:
    grants = [Grant(account=ACCOUNT, role="roles/storage.objectViewer", bucket="bucket")]
    assert is_granted(grants, ACCOUNT, need(GET, "x"))
    for permission in (CREATE, DELETE, UPDATE, BUCKET):
        assert not is_granted(grants, ACCOUNT, need(permission, "x"))
