"""Everything that can be said against a manifest without a cluster: schema and rules first, then the operator's."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from finetune_operator.cli.errors import CliError
from finetune_operator.cli.manifests import of_kind, parse, read
from finetune_operator.cli.validate import validate_text
from finetune_operator.planning import Refused, check_profile_object
from finetune_operator.planning.admission import check_job


def check_files(paths: Iterable[Path]) -> list[str]:
    """One line for each problem, with file, place and what to do; empty when all is in order."""
    found: list[str] = []
    for path in paths:
        name = "stdin" if str(path) == "-" else str(path)
        try:
            text = read(path)
        except CliError as error:
            found.append(error.message)
            continue
        problems = [str(problem) for problem in validate_text(text, file=name)]
        # The operator's own judgement presupposes the schema.
        found += problems or _refusals(text, name)
    return found


def _refusals(text: str, name: str) -> Iterator[str]:
    """What this version of the operator would refuse, as far as one object alone can tell."""
    objects = parse(text, name)
    for check, kind in ((check_job, "FineTuneJob"), (check_profile_object, "FineTuneProfile")):
        for item in of_kind(objects, kind):
            try:
                check(item)
            except Refused as error:
                yield f"{name}: {item['metadata']['name']}: {error.reason}: {error.message}"
