"""``finetune profiles``: what jobs of a namespace may use."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from finetune_operator.api.conditions import stored_condition
from finetune_operator.cli import text
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError, close_names
from finetune_operator.cli.monthly_budget import known_text, monthly_limit, newest_budgets
from finetune_operator.cli.printing import item_text, list_text
from finetune_operator.cluster.port import Rejected
from finetune_operator.objects import Object
from finetune_operator.planning import Refused, default_profile, serves

_LABEL = 10


async def show_profiles(
    connection: Connection, name: str | None, output: str | None, write: Callable[[str], None]
) -> None:
    """Prints the profiles that serve the connection's namespace; or the one of that name. Raises CliError."""
    try:
        found = await connection.profiles()
    except Rejected as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        raise CliError(
            str(error),
            fix="Profiles belong to the cluster: a role in a namespace is not enough. Ask for a ClusterRoleBinding to "
            "the chart's ClusterRole …-profile-view.",
        ) from error
    if name is not None:
        known = [each["metadata"]["name"] for each in found]
        found = [each for each in found if each["metadata"]["name"] == name]
        if not found:
            raise CliError(f'There is no FineTuneProfile "{name}".', fix=close_names(name, known))
    if output:
        if found or output != "name":
            items = [item_text(profile, output) for profile in found]
            write(list_text(items, output) if name is None else items[0])
        return
    budgets = await _budgets(connection, found)
    for line in profile_lines(found, connection.namespace, budgets):
        write(line)


async def _budgets(connection: Connection, profiles: Sequence[Object]) -> dict[str, str]:
    """Returns what is left of the budget that each profile gives the namespace, by the statuses of its jobs."""
    limited = [
        each for each in profiles if serves(each, connection.namespace) and monthly_limit(each) is not None
    ]
    if not limited:
        return {}
    try:
        newest = await newest_budgets(connection.jobs())
    except Rejected as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        newest = {}
    now = datetime.now(UTC)
    names = {each["metadata"]["name"]: each for each in limited}
    return {name: known_text(each, newest.get(name), now) for name, each in names.items()}


def profile_lines(
    profiles: Sequence[Object], namespace: str, budgets: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Yields a block of lines for each profile that serves the namespace, and one line that names the others.

    Args:
        profiles: all of them.
        namespace: the namespace.
        budgets: by profile, what is left of the namespace's chip hours of the month.
    """
    usable = [each for each in profiles if serves(each, namespace)]
    default = None
    with suppress(Refused):
        default = default_profile(namespace, profiles)["metadata"]["name"]
    for number, profile in enumerate(usable):
        if number:
            yield ""
        name = profile["metadata"]["name"]
        yield from _block(profile, namespace, budgets.get(name, ""), is_default=name == default)
    others = [each["metadata"]["name"] for each in profiles if not serves(each, namespace)]
    if not usable:
        yield f"No profile serves namespace {namespace}."
    if others:
        yield f"{chr(10) if usable else ''}Not for namespace {namespace}: {', '.join(others)}"


def _block(profile: Object, namespace: str, budget: str, *, is_default: bool) -> Iterator[str]:
    spec, metadata = profile["spec"], profile["metadata"]
    constraints = spec.get("constraints") or {}
    head = [metadata["name"], *(["(default)"] if is_default else []), spec.get("displayName") or ""]
    yield text.one_line(" ".join(head))
    if fault := _fault(profile):
        yield _line("Not valid", fault)
    for flavor in spec.get("flavors") or ():
        yield _line("Slices", _flavor(flavor, spec.get("currency")))
    anything = "none listed" if constraints.get("mode", "Strict") == "Strict" else "any"
    uris = constraints.get("uris") or {}
    yield _line(
        "Models", _listed((spec.get("models") or {}).get("allow"), _listed(uris.get("read"), anything))
    )
    own = f"{spec['storage']['artifacts'].rstrip('/')}/{namespace}"
    yield _line("Read", f"{own}/; beside it: {_listed(uris.get('read'), anything)}")
    yield _line("Write", f"{own}/exports/; beside it: {_listed(uris.get('write'), anything)}")
    if limits := list(_limits(constraints)):
        yield _line("Limits", "; ".join(limits))
    if budget:
        yield _line("Budget", budget)
    if locked := constraints.get("locked"):
        yield _line("Locked", _listed(locked, ""))
    if queue := (spec.get("queue") or {}).get("localQueue"):
        yield _line("Queue", f"LocalQueue {queue}")
    if owner := spec.get("owner"):
        yield _line("Contact", ", ".join(each for each in (owner.get("team"), owner.get("contact")) if each))


def _fault(profile: Object) -> str:
    valid = stored_condition(profile, "Valid")
    return f"{valid['reason']}: {valid['message']}" if valid.get("status") == "False" else ""


def _flavor(flavor: Object, currency: object) -> str:
    price = flavor.get("chipHourPrice")
    parts = [
        f"{flavor['accelerator']} {', '.join(flavor['topologies'])}",
        str(flavor["capacity"]),
        f"up to {flavor['maxSlices']} slices" if flavor.get("maxSlices", 1) > 1 else "",
        f"{price} {currency} per chip hour" if price is not None else "price unknown",
    ]
    return f"{'; '.join(each for each in parts if each)} (flavor {flavor['name']})"


def _limits(constraints: Object) -> Iterator[str]:
    if (chip_hours := constraints.get("maxChipHours")) is not None:
        yield f"{chip_hours} chip hours per job"
    if (monthly := constraints.get("chipHoursPerMonth")) is not None:
        yield f"{monthly} chip hours per namespace and month"
    for limit in constraints.get("limits") or ():
        low, high = limit.get("min"), limit.get("max")
        yield f"{f'{low} ≤ ' if low is not None else ''}{limit['path']}{f' ≤ {high}' if high is not None else ''}"


def _listed(entries: Any, otherwise: str) -> str:
    return ", ".join(map(str, entries)) if entries else otherwise


def _line(label: str, value: str) -> str:
    return f"  {label:<{_LABEL}}{text.one_line(value)}"
