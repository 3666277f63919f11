"""Manifests of exports: which are accepted, and that no name in one leads out of its folder."""

import json
import os
from contextlib import suppress
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.results.model_manifest import MANIFEST, ManifestError, ModelManifest
from tests.unit.cli.exported import FILES, manifest_of

NAMES = st.lists(
    st.text(st.one_of(st.sampled_from(list("./\\:~ \0aA")), st.characters()), max_size=12),
    min_size=1,
    max_size=4,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["format", "files", "path", "size"]), inner)
    ),
)


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(manifest_of({"a": b"x"})) | fields).encode()


def test_a_manifest_lists_names_sizes_and_digests() -> None:
    manifest = ModelManifest.parse(manifest_of(FILES))
    assert [each.path for each in manifest.files] == list(FILES)
    assert manifest.size == sum(map(len, FILES.values()))


@pytest.mark.parametrize(
    "name",
    [
        "model-00001-of-00002.safetensors",
        "items/_METADATA",
        "items/ocdbt.process_0/d/0f3a",
        "items/params.layers/.zarray",
        ".gitattributes",
    ],
)
def test_names_that_exports_have_are_accepted(name: str) -> None:
    assert ModelManifest.parse(manifest_of({name: b"x"})).files[0].path == name


@pytest.mark.parametrize(
    "name",
    [
        "../x", "a/../../x", "..", ".", "", "/etc/passwd", "//host/share", "a//b", "a/", "./a", "C:/x", "C:x", "a:b",
        "..\\x", "a\\b", "a\0b", "a\nb", "\x1b[2Ja", "~/x", "MODEL~1.SAF", "a b", "a.", "a/..b/.", "ä", "a\u202eb",
        "nul", "CON.txt", "items/com1", "x" * 256, "/".join("a" * 17),
        "a.partial", "A.PARTIAL", "manifest.json", "MANIFEST.JSON",
    ],
)  # fmt: skip
def test_names_that_are_not_safe_are_refused_without_printing_them_raw(name: str) -> None:
    with pytest.raises(ManifestError) as caught:
        ModelManifest.parse(manifest_of({"config.json": b"{}", name: b"x"}))
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"Config.json": b"", "config.json": b""}, "twice"),
        ({"a": b"", "a/b": b""}, "as a file and as a folder"),
        ({"A/b": b"", "a": b""}, "as a file and as a folder"),
    ],
)
def test_names_that_collide_on_some_systems_are_refused(files: dict[str, bytes], fault: str) -> None:
    with pytest.raises(ManifestError, match=fault):
        ModelManifest.parse(manifest_of(files))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"a":' * 100_000,
        changed(format="tpu-finetune.dev/model-manifest/v9"),
        changed(kind="Pickle"),
        changed(files=[]),
        changed(files={}),
        changed(files=[{"path": "a", "size": -1, "sha256": "0" * 64}]),
        changed(files=[{"path": "a", "size": 2**60, "sha256": "0" * 64}]),
        changed(files=[{"path": "a", "size": "1", "sha256": "0" * 64}]),
        changed(files=[{"path": "a", "size": 1, "sha256": "0" * 63 + "G"}]),
        changed(files=[{"path": ["a"], "size": 1, "sha256": "0" * 64}]),
        changed(files=[{"path": f"{number}", "size": 0, "sha256": "0" * 64} for number in range(20_001)]),
    ],
    ids=lambda content: repr(content[:30]),
)  # fmt: skip
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(ManifestError):
        ModelManifest.parse(content)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_content_is_a_manifest_or_refused(content: bytes) -> None:
    with suppress(ManifestError):
        ModelManifest.parse(content)


@given(NAMES)
def test_no_accepted_name_leads_out_of_the_folder_on_any_system(names: list[str]) -> None:
    try:
        manifest = ModelManifest.parse(manifest_of(dict.fromkeys(names, b"")))
    except (ManifestError, UnicodeEncodeError):
        return
    for file in manifest.files:
        assert os.path.normpath(f"/dir/{file.path}") == f"/dir/{file.path}"
        windows = PureWindowsPath(file.path)
        assert not windows.drive
        assert not windows.root
        assert windows.parts == PurePosixPath(file.path).parts
        assert file.path.lower() != MANIFEST
