"""The roles on buckets that docs/install-gke.md gives to the operator and to a team's accounts."""

import re
from collections.abc import Sequence
from pathlib import Path

from devcluster import samples
from tests.doubles.bucket_iam import Grant

MODELS, DATA = (item.uri.split("/")[2] for item in (samples.TINY_MODEL, samples.CAPITALS))
ARTIFACTS, CACHE = "ft-artifacts", "ft-cache"
_GUIDE = Path(__file__).parents[1] / "docs" / "install-gke.md"
#: The table's columns -> bucket of the local cluster, and whether the role is on the team's folder in it.
_COLUMNS: Sequence[tuple[tuple[str, ...], bool]] = (
    ((ARTIFACTS,), True),
    ((CACHE,), True),
    ((MODELS,), True),
    ((DATA,), True),
    ((ARTIFACTS, CACHE, MODELS, DATA), False),
)
_TEAM = "team-a"


def of_team(namespace: str) -> list[Grant]:
    """What an administrator grants for the team with that namespace, row by row."""
    table = _GUIDE.read_text().partition("| account |")[2].partition("\n\n")[0]
    grants = []
    for row in table.splitlines()[2:]:
        first, *cells = (cell.strip() for cell in row.strip("| ").split("|"))
        account = re.match(r"`([\w/-]+)`", first)
        assert account, row
        name = account[1].replace(f"{_TEAM}/", f"{namespace}/")
        for (buckets, in_folder), cell in zip(_COLUMNS, [*cells, *[""] * 5], strict=False):
            grants += [
                Grant(
                    account=name,
                    role=cell.strip("`"),
                    bucket=bucket,
                    folder=f"{namespace}/" if in_folder else "",
                )
                for bucket in buckets
                if cell
            ]
    return grants
