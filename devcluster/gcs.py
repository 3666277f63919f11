"""The object store: fake-gcs-server over a folder, so that URIs are ``gs://`` as in the cloud."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from devcluster.component import Component
from devcluster.layout import StateFolder

#: Bucket names are global in the cloud, and examples name buckets that hold inputs. No bucket there can end in
#: .invalid, a reserved domain, so an example for the local cluster can't read another user's files when applied
#: elsewhere.
BUCKETS: Sequence[str] = ("ft-artifacts", "ft-cache", "ft-data.invalid", "ft-models.invalid")


def fake_gcs(state: StateFolder, programs: Mapping[str, Path], ports: Mapping[str, int]) -> Component:
    host = f"127.0.0.1:{ports['gcs']}"
    return Component(
        name="gcs",
        argv=(
            str(programs["fake-gcs-server"]),
            "-scheme=http",
            "-host=127.0.0.1",
            f"-port={ports['gcs']}",
            f"-public-host={host}",
            f"-external-url=http://{host}",
            "-backend=filesystem",
            f"-filesystem-root={state.buckets}",
            "-log-level=warn",
        ),
        ready_url=f"{endpoint(ports)}/storage/v1/b",
    )


#: First path segment of an account's own endpoint, if the store is a proxy that has accounts.
ACCOUNTS = "as"


def account_endpoint(store: str, namespace: str, account: str) -> str:
    """A service account's endpoint of a ``store`` with accounts."""
    return f"{store}/{ACCOUNTS}/{namespace}/{account}"


def endpoint(ports: Mapping[str, int]) -> str:
    return f"http://127.0.0.1:{ports['gcs']}"


def client_environment(at: str) -> dict[str, str]:
    """Variables that make google-cloud-storage, etils and tensorstore (hence Orbax) use the emulator at that URL.

    No credentials are needed.
    """
    return {
        "STORAGE_EMULATOR_HOST": at,
        "TENSORSTORE_GCS_HTTP_URL": at,
        # both prevent the search for a metadata server, which costs seconds per process
        "GCE_METADATA_HOST": "localhost:1",
        "NO_GCE_CHECK": "true",
        # gcsfs would ask for the kind of the bucket at each access, which the emulator does not answer, and warn
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


async def create_buckets(session: aiohttp.ClientSession, ports: Mapping[str, int]) -> None:
    """Creates the missing buckets. Raises aiohttp.ClientError if the server refuses."""
    for name in BUCKETS:
        url = f"{endpoint(ports)}/storage/v1/b"
        async with session.post(url, data=json.dumps({"name": name})) as answer:
            if answer.status != 409:
                answer.raise_for_status()
