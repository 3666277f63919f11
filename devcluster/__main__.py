"""``python -m devcluster build | up | down | status | env``."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from devcluster import build, control, gcs
from devcluster.errors import LocalClusterError
from devcluster.layout import StateFolder, default_state_dir
from devcluster.options import Options
from devcluster.pki import PkiError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen) or 0)
    except (LocalClusterError, build.BuildError, PkiError, ValueError) as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run it again to continue", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="devcluster", description="A Kubernetes cluster on this machine.")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("build", help="build the cluster's programs that are missing")
    _extra(command)
    command.set_defaults(run=_build)

    command = commands.add_parser("up", help="start the cluster, or repair the running one")
    _state(command)
    _extra(command)
    command.add_argument(
        "--operator",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the operator as its own ServiceAccount (default: yes)",
    )
    start = command.add_mutually_exclusive_group()
    start.add_argument(
        "--warm",
        dest="warm",
        action="store_true",
        default=True,
        help="fork stages from a process that has imported everything (default)",
    )
    start.add_argument("--cold", dest="warm", action="store_false", help="start each stage afresh")
    command.set_defaults(run=_up)

    command = commands.add_parser(
        "down", help="stop the cluster; its objects and buckets are kept for the next `up`"
    )
    _state(command)
    command.add_argument("--purge", action="store_true", help="also delete its objects, buckets and logs")
    command.set_defaults(run=_down)

    command = commands.add_parser("status", help="show processes, their uptime and memory")
    _state(command)
    command.set_defaults(run=_status)

    command = commands.add_parser("env", help='print variables for a shell to use the cluster: eval "$(…)"')
    _state(command)
    command.set_defaults(run=_env)

    command = commands.add_parser("supervise")
    _state(command)
    command.set_defaults(run=_supervise)
    return parser


def _state(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state",
        type=Path,
        default=None,
        metavar="DIR",
        help=f"state folder (default: {default_state_dir()})",
    )


def _extra(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--with",
        dest="extra",
        type=lambda text: [name for name in text.split(",") if name],
        default=[],
        metavar="NAME,…",
        help="also kueue (queues and quota), kwok (fake nodes), kubelet, kube-proxy (built only, for tests/images)",
    )


def _of(chosen: argparse.Namespace) -> StateFolder:
    return StateFolder((chosen.state or default_state_dir()).expanduser().resolve())


def _build(chosen: argparse.Namespace) -> None:
    for name, path in build.ensure(chosen.extra).items():
        print(f"{name:24} {path}")


def _up(chosen: argparse.Namespace) -> None:
    state = _of(chosen)
    started = time.monotonic()
    build.ensure(chosen.extra)
    state.root.mkdir(parents=True, exist_ok=True)
    options = Options.chosen(warm=chosen.warm)
    if options.trainer is None:
        _say(
            "the trainer's environment is not installed (`make trainer`): stage pods would stay in ErrImagePull"
        )
    control.up(state, options, operator=chosen.operator, extra=chosen.extra, report_progress=_say)
    option = "" if chosen.state is None else f" --state {state.root}"
    _say(f"cluster is up, {time.monotonic() - started:.1f} s; `python -m devcluster down{option}` stops it")
    _say(f'For a shell with its kubectl and object store: eval "$(python -m devcluster env{option})"')
    print(f"export KUBECONFIG={state.kubeconfig}")


def _down(chosen: argparse.Namespace) -> None:
    state = _of(chosen)
    _say("cluster stopped" if control.shut_down(state) else f"no cluster was running in {state.root}")
    if chosen.purge:
        shutil.rmtree(state.root, ignore_errors=True)
        _say(f"{state.root} deleted")


def _status(chosen: argparse.Namespace) -> int:
    rows = control.call(_of(chosen), {"do": "status"})
    print(f"{'component':26}{'state':24}{'pid':>8}{'up':>10}{'restarts':>10}{'memory':>10}")
    for row in rows:
        print(
            f"{row['name']:26}{row['state']:24}{row['pid'] or '-':>8}{row['seconds']:>8} s"
            f"{row['restarts']:>10}{row['memory'] >> 20:>6} MiB"
        )
    print(f"{'total':78}{sum(row['memory'] for row in rows) >> 20:>6} MiB")
    return 0 if rows and all(row["state"] in {"ready", "stopped"} for row in rows) else 1


def _env(chosen: argparse.Namespace) -> None:
    state = _of(chosen)
    ports = control.call(state, {"do": "ports"})
    print(f"export KUBECONFIG={state.kubeconfig}")
    print(f"export FINETUNE_LEDGER={state.ledger.as_uri()}")
    for name, value in gcs.client_environment(gcs.endpoint(ports)).items():
        print(f"export {name}={value}")
    print(f"export PATH={build.binary_dir()}:{os.environ['PATH']}")


def _supervise(chosen: argparse.Namespace) -> None:
    control.supervise(_of(chosen))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
