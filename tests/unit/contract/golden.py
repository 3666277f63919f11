"""What the contract was in each of its versions, as files: ``golden/<version>/``.

``python -m tests.unit.contract.golden`` writes the folder of the current version. Where it is there already and says
something else, the version has changed: raise ``CONTRACT_VERSION``. ``--unreleased`` writes it all the same, for a
version that no release supports yet.
"""

import argparse
import inspect
import json
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from finetune_contract import CacheLayout, ContractVersion, ExitCode, RunFolder
from finetune_contract.failure import CLASS_OF_CODE
from finetune_contract.versions import CONTRACT_VERSION
from tests.unit.contract.samples import roots, samples
from tests.unit.contract.schemas import schema_of

type Object = dict[str, Any]

GOLDEN = Path(__file__).with_name("golden")
_ARGUMENTS: Mapping[str, Any] = {"str": "name", "int": 2}


def versions() -> list[ContractVersion]:
    """Those that there are files of, the first one first."""
    return sorted(ContractVersion.parse(folder.name) for folder in GOLDEN.iterdir())


@cache
def read(version: ContractVersion) -> dict[str, Object]:
    """By path below the version's folder: the document."""
    folder = GOLDEN / str(version)
    return {
        str(path.relative_to(folder).with_suffix("")): json.loads(path.read_text())
        for path in sorted(folder.rglob("*.json"))
    }


@cache
def current() -> dict[str, Object]:
    """The same of the code as it is."""
    return {
        **{f"schemas/{name}": schema_of(record) for name, record in roots().items()},
        **{f"records/{record.__name__}/{name}": document for name, (record, document) in samples().items()},
        "exit-codes": {
            str(int(code)): [code.name, str(CLASS_OF_CODE[code]) if code in CLASS_OF_CODE else None]
            for code in ExitCode
        },
        "layout": {
            **_places(RunFolder("gs://run")),
            **_places(CacheLayout("gs://cache")),
        },
    }


def _places(layout: object) -> Object:
    """Every address that a layout knows."""
    found = {}
    for name, member in vars(type(layout)).items():
        if isinstance(member, property):
            found[f"{type(layout).__name__}.{name}"] = getattr(layout, name)
        elif inspect.isfunction(member) and not name.startswith("_"):
            parameters = list(inspect.signature(member).parameters.values())[1:]
            given = [_ARGUMENTS[getattr(each.annotation, "__name__", "str")] for each in parameters]
            found[f"{type(layout).__name__}.{name}"] = getattr(layout, name)(*given)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--unreleased", action="store_true", help="no release supports the current version yet"
    )
    overwrite = parser.parse_args(arguments).unreleased
    folder, made = GOLDEN / str(CONTRACT_VERSION), current()
    if folder.exists() and not overwrite and read(CONTRACT_VERSION) != made:
        print(f"{folder} says something else: raise CONTRACT_VERSION (or see --help)", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    for name, document in made.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(f"wrote {len(made)} files to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
