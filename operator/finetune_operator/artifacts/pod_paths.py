"""Which part of a path in a mounted folder pods write: a run folder or, in a cache, a converted model."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

#: The platform's folder, and the part below it that pods write. The first that matches. Exports have names of any
#: depth, so there the name of the run folder is recognized by its uid.
_WRITTEN_BY_PODS = (
    re.compile(
        r"(.*?)/([^/]+-[0-9a-f]{8}/(?:attempts|evaluate|export|preflight|train|status\.json)(?:/.*)?)"
    ),
    re.compile(
        r"(.*)/([^/]+/(?:attempts|preflight|train)(?:/[^/]+){0,2}|[^/]+/status\.json|convert(?:/[^/]+){0,2})/?"
    ),
)


def written_by_pods(path: Path) -> Sequence[str]:
    """Returns the last names of the path that pods may have written; empty if the platform has set up all of it.

    Symbolic links in these names are not followed; those in the path above belong to the platform.
    """
    matches = (pattern.fullmatch(str(path)) for pattern in _WRITTEN_BY_PODS)
    written = next(filter(None, matches), None)
    return PurePosixPath(written[2]).parts if written else ()
