"""Run folders with exports, as the Export stage writes them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune_contract import Artifact, ExportOutcome

KINDS = {"model": "HuggingFace", "adapter": "Adapter", "orbax": "OrbaxParams"}
FILES: Mapping[str, bytes] = {
    "config.json": b'{"architectures": ["Qwen3ForCausalLM"]}',
    "empty": b"",
    "model.safetensors": bytes(range(256)) * 100,
    "serving/gpu.yaml": b"kind: Deployment\n",
}
ADAPTER: Mapping[str, Any] = {
    "base_model_name_or_path": "Qwen/Qwen3-0.6B",
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 8,
    "lora_alpha": 16.0,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "v_proj"],
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def manifest_of(files: Mapping[str, bytes], kind: str = "HuggingFace") -> bytes:
    """The manifest of these files; their names may be hostile."""
    listed = [
        {"path": name, "size": len(content), "sha256": sha256(content)} for name, content in files.items()
    ]
    return json.dumps(
        {"format": "tpu-finetune.dev/model-manifest/v1", "kind": kind, "files": listed}
    ).encode()


def write_run(folder: Path, exports: Mapping[str, Mapping[str, bytes]]) -> Path:
    """Writes a run folder with these exports, by name, and returns it."""
    for name, files in exports.items():
        write_manifest(folder, name, manifest_of(files, KINDS[name]))
        for path, content in files.items():
            place = folder / "export" / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    write_record(folder, exports)
    return folder


def write_manifest(folder: Path, name: str, content: bytes) -> None:
    place = folder / "export" / name / "manifest.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def write_record(folder: Path, names: Mapping[str, object]) -> None:
    """Writes the record of the export, with the digests of the manifests that are there."""
    uri = f"file://{folder}"
    artifacts = [
        Artifact(
            name=name,
            type=KINDS[name],  # type: ignore[arg-type]
            uri=f"{uri}/export/{name}",
            digest=f"sha256:{sha256((folder / 'export' / name / 'manifest.json').read_bytes())}",
            size_bytes=1,
        )
        for name in names
    ]
    outcome = ExportOutcome(artifacts=artifacts, manifest=f"{uri}/export/manifest.json")
    (folder / "export" / "manifest.json").write_text(outcome.to_json())


def contents(folder: Path) -> dict[str, bytes]:
    """Files of a folder, by relative name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
