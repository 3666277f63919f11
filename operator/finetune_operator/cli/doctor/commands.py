"""The command ``doctor``."""

from typing import Annotated, Literal

import typer

from finetune_operator.cli.app import BEFORE, echo
from finetune_operator.cli.connect.options import ClusterOptions, OperatorNamespace, cluster_command


@cluster_command(BEFORE)
def doctor(
    operator_namespace: OperatorNamespace = "finetune-system",
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Also run a pod for each account, which pulls the images and tries the buckets. Minutes.",
        ),
    ] = False,
    output: Annotated[
        Literal["json"] | None, typer.Option("--output", "-o", help="Default: a line for each finding.")
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Check the installation, as its administrator or as a user: what is missing, and the command that mends it."""
    from finetune_operator.cli.doctor.examine import examine

    cluster.run(
        lambda connection: examine(
            connection, operator_namespace, probe=probe, as_json=output is not None, write=echo
        )
    )
