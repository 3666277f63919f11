"""/metrics with TLS."""

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.metrics_tls import metrics_tls
from finetune_operator.runtime.probes import ProbeServer
from finetune_operator.runtime.settings import Settings, SettingsError


def certificate(folder: Path) -> Path:
    """Writes a certificate of its own authority for 127.0.0.1: tls.crt, tls.key and ca.crt."""
    folder.mkdir(exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-subj", "/CN=metrics", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    (folder / "ca.crt").write_text((folder / "tls.crt").read_text())
    return folder


def client(trusted: Path, *, presents: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(trusted / "ca.crt"))
    if presents is not None:
        context.load_cert_chain(presents / "tls.crt", presents / "tls.key")
    return context


@asynccontextmanager
async def served(folder: Path, *, client_auth: bool = False) -> AsyncIterator[str]:
    """The URL of /metrics."""
    settings = Settings(metrics_tls_dir=folder, metrics_client_auth=client_auth)
    server = ProbeServer(
        healthy=tuple,
        ready=tuple,
        metrics=OperatorMetrics(),
        metrics_tls=metrics_tls(settings),
    )
    _, port = await server.start("127.0.0.1", 0, 0)
    try:
        yield f"https://127.0.0.1:{port}/metrics"
    finally:
        await server.stop()


async def fetch(url: str, context: ssl.SSLContext) -> str:
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
        return await answer.text()


async def test_metrics_are_served_with_the_certificate_and_not_without(tmp_path: Path) -> None:
    folder = certificate(tmp_path / "one")
    async with served(folder) as url:
        assert "finetune_leader" in await fetch(url, client(folder))
        with pytest.raises(aiohttp.ClientError):
            await fetch(url.replace("https", "http"), client(folder))


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    folder = certificate(tmp_path / "one")
    old = client(folder)
    async with served(folder) as url:
        (folder / "tls.crt").write_text("half of a renewal")
        await fetch(url, old)
        certificate(folder)
        await fetch(url, client(folder))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await fetch(url, old)


async def test_with_client_authentication_only_the_authoritys_clients_are_answered(tmp_path: Path) -> None:
    folder, other = certificate(tmp_path / "one"), certificate(tmp_path / "other")
    async with served(folder, client_auth=True) as url:
        assert "finetune_leader" in await fetch(url, client(folder, presents=folder))
        for presents in (None, other):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await fetch(url, client(folder, presents=presents))


async def test_a_replaced_authority_is_trusted_from_the_next_connection_on_and_the_old_one_no_longer(
    tmp_path: Path,
) -> None:
    folder, other = certificate(tmp_path / "one"), certificate(tmp_path / "other")
    old, new = (client(folder, presents=each) for each in (folder, other))
    async with served(folder, client_auth=True) as url:
        await fetch(url, old)
        shutil.copyfile(other / "ca.crt", folder / "ca.crt")
        for _ in range(2):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await fetch(url, old)
            assert "finetune_leader" in await fetch(url, new)


async def test_a_session_does_not_outlive_the_trust_in_its_authority(tmp_path: Path) -> None:
    folder, other = certificate(tmp_path / "one"), certificate(tmp_path / "other")
    context = client(folder, presents=folder)

    def ask(port: int, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        with (
            socket.create_connection(("127.0.0.1", port)) as connection,
            context.wrap_socket(connection, server_hostname="127.0.0.1", session=session) as secure,
        ):
            secure.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return secure.recv(12), secure.session

    async with served(folder, client_auth=True) as url:
        port = URL(url).port
        assert port is not None
        answer, session = await asyncio.to_thread(ask, port, None)
        assert answer == b"HTTP/1.0 200"
        shutil.copyfile(other / "ca.crt", folder / "ca.crt")
        try:
            answer, _ = await asyncio.to_thread(ask, port, session)
        except (ssl.SSLError, ConnectionError):
            answer = b""
        assert not answer


def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    folder = certificate(tmp_path / "one")
    (folder / "ca.crt").unlink()
    with pytest.raises(SettingsError, match=r"FINETUNE_METRICS_TLS_DIR=.*tls.key and ca.crt cannot be used"):
        metrics_tls(Settings(metrics_tls_dir=folder, metrics_client_auth=True))
    (folder / "tls.key").unlink()
    with pytest.raises(SettingsError, match=r"tls\.crt and tls\.key cannot"):
        metrics_tls(Settings(metrics_tls_dir=folder))
    assert metrics_tls(Settings()) is None
