"""Arguments and options that several commands have, and the connection that they describe."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from finetune_operator.cli.app import app
from finetune_operator.cli.errors import CliError

if TYPE_CHECKING:
    from finetune_contract import Stage
    from finetune_operator.cli.connect.connection import Connection

#: Limit of a question that a command can do without, or a shell waits for.
_SECONDS = 3.0


def complete_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of the namespace's jobs that begin with ``incomplete``; none if the cluster does not answer."""

    async def names(cluster: "Connection") -> list[str]:
        return [name async for name in cluster.names()]

    return _completions(ctx, incomplete, names)


def complete_profiles(ctx: typer.Context, incomplete: str) -> list[str]:
    """As :func:`complete_names`, of the profiles that the namespace's jobs may use."""

    async def names(cluster: "Connection") -> list[str]:
        from finetune_operator.planning import serves

        found = await cluster.profiles()
        return [each["metadata"]["name"] for each in found if serves(each, cluster.namespace)]

    return _completions(ctx, incomplete, names)


def _completions(
    ctx: typer.Context, incomplete: str, names: Callable[["Connection"], Awaitable[list[str]]]
) -> list[str]:
    given = {name: ctx.params.get(name) for name in _CLUSTER_OPTIONS}
    try:
        found = ClusterOptions(**given).run(names, seconds=_SECONDS)
        return [name for name in found if name.startswith(incomplete)]
    except (CliError, TimeoutError):
        return []


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the FineTuneJob.", autocompletion=complete_names)
]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Names of FineTuneJobs.", autocompletion=complete_names),
]
NamesOrAll = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Names of FineTuneJobs.", autocompletion=complete_names),
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")]
Selector = Annotated[
    str | None,
    typer.Option("--selector", "-l", help="Label selector, for example team=nlp.", metavar="LABELS"),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Default: the context's namespace.", metavar="NS")
]
ManifestNamespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", help="Of a job whose manifest names none; else it is default.", metavar="NS"
    ),
]
ManifestFiles = Annotated[
    list[Path],
    typer.Option(
        "--filename",
        "-f",
        help="Manifest, or a folder with .yaml, .yml and .json files; may be repeated; - is stdin.",
        metavar="FILE",
    ),
]
MoreFiles = Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Further manifests.")]
OperatorNamespace = Annotated[
    str, typer.Option("--operator-namespace", help="Where the operator runs.", metavar="NS")
]
Recursive = Annotated[bool, typer.Option("--recursive", "-R", help="Read the folders below a folder, too.")]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Default: $KUBECONFIG, ~/.kube/config.", metavar="FILE")
]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; default: its current one.")
]
User = Annotated[str | None, typer.Option("--as", help="User to impersonate, as in kubectl.", metavar="USER")]
ObjectOutput = Literal["json", "yaml", "name"]
"""Output formats of whole objects."""


class ExportName(StrEnum):
    """The folders that a job exports, the most important first."""

    MODEL = "model"
    ADAPTER = "adapter"
    ORBAX = "orbax"


def member_named[E: StrEnum](text: str, known: Sequence[E]) -> E:
    """Returns the member with that value, ignoring case. Raises BadParameter with the most similar one."""
    from finetune_operator.api import one_of

    found = next((each for each in known if each.lower() == text.lower()), None)
    if found is None:
        raise typer.BadParameter(f"unknown value {text!r}{one_of(text, known)}")
    return found


def stage_named(text: str) -> "Stage":
    """Parses the name of a stage, ignoring case."""
    from finetune_contract import Stage

    return member_named(text, list(Stage))


def parsed_option[T](option: str, parse: Callable[[str], T], value: str) -> T:
    """Parses the value of an option. Raises BadParameter, for exit code 2."""
    try:
        return parse(value)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options that select a cluster and a namespace."""

    namespace: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    user: str | None = None

    def run[T](self, command: Callable[["Connection"], Awaitable[T]], *, seconds: float | None = None) -> T:
        """Runs one command against the cluster. Raises TimeoutError after ``seconds``, CliError and what it raises."""
        from finetune_operator.cli.connect.cluster import connect

        async def run() -> T:
            path = str(self.kubeconfig) if self.kubeconfig else None
            async with (
                asyncio.timeout(seconds),
                connect(
                    path=path, context=self.context, user=self.user, namespace=self.namespace
                ) as connection,
            ):
                return await command(connection)

        return asyncio.run(run())

    def ask[T](self, question: Callable[["Connection"], Awaitable[T]]) -> T | None:
        """Asks what a command can do without. Returns None if no cluster answers in 3 s.

        Raises CliError if the options name a cluster that cannot be asked.
        """
        try:
            return self.run(question, seconds=_SECONDS)
        except (CliError, TimeoutError) as error:
            if isinstance(error, CliError) and (self.kubeconfig or self.context or self.user):
                raise
            return None


_CLUSTER_OPTIONS = {"namespace": Namespace, "kubeconfig": Kubeconfig, "context": Context, "user": User}


def cluster_command(panel: str, name: str | None = None) -> Callable[[Callable[..., None]], None]:
    """Registers a command that gets the options of a cluster as ``cluster``, a :class:`ClusterOptions`.

    They follow its own options. One of its own may replace one of them, such as a ``namespace`` with another help.
    """

    def register(command: Callable[..., None]) -> None:
        own = [option for option in signature(command).parameters.values() if option.name != "cluster"]
        added = [
            Parameter(option, Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for option, hint in _CLUSTER_OPTIONS.items()
            if all(other.name != option for other in own)
        ]

        def run(**given: Any) -> None:
            cluster = ClusterOptions(**{option: given[option] for option in _CLUSTER_OPTIONS})
            command(**{option.name: given[option.name] for option in own}, cluster=cluster)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        # typer reads both.
        vars(run)["__signature__"] = Signature([*own, *added])
        run.__annotations__ = {option.name: option.annotation for option in (*own, *added)}
        app.command(name=name, rich_help_panel=panel)(run)

    return register
