"""The command lines of Pathways' servers, as far as JobSets use them."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

#: ``tpuv6e:4x4``, ``tpuv6e1t:2x4``; axlearn's manifests append ``_untwisted`` to some.
_INSTANCE_TYPE = re.compile(r"tpu[a-z0-9]+:(\d+(?:x\d+){1,2})(?:_untwisted)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceManagerFlags:
    """Flags of a resource manager."""

    port: int
    slices: int
    chips: int
    """Number of chips of a slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFlags:
    """Flags of a proxy or a worker: its own port, and the resource manager's address."""

    port: int
    manager_host: str
    manager_port: int


def proxy(arguments: Sequence[str]) -> ClientFlags:
    """Parses the flags of the image ``proxy_server``. Exits with a message if they are invalid."""
    return _client(_parser("proxy_server"), arguments)


def server(arguments: Sequence[str]) -> ResourceManagerFlags | ClientFlags:
    """Parses the flags of the image ``server``: a resource manager or, without a node type, a worker.

    Exits with a message if they are invalid.
    """
    parser = _parser("server")
    if not any(argument.startswith("--node_type") for argument in arguments):
        return _client(parser, arguments)
    parser.add_argument("--node_type", choices=["resource_manager"], required=True)
    parser.add_argument("--instance_count", type=int, required=True)
    parser.add_argument("--instance_type", type=_chips, required=True)
    found = parser.parse_args(arguments)
    return ResourceManagerFlags(
        port=found.server_port, slices=found.instance_count, chips=found.instance_type
    )


def _client(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> ClientFlags:
    parser.add_argument("--resource_manager_address", type=_address, required=True)
    found = parser.parse_args(arguments)
    host, port = found.resource_manager_address
    return ClientFlags(port=found.server_port, manager_host=host, manager_port=port)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    parser.add_argument("--server_port", type=int, required=True)
    parser.add_argument("--gcs_scratch_location", type=_bucket, required=True)
    return parser


def _chips(text: str) -> int:
    match = _INSTANCE_TYPE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is not a slice such as tpuv6e:4x4")
    return prod(int(edge) for edge in match[1].split("x"))


def _bucket(text: str) -> str:
    if not text.startswith("gs://"):
        raise argparse.ArgumentTypeError(f"{text} is not a gs:// URI")
    return text


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not HOST:PORT")
    return host, int(port)
