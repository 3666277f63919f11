"""TLS of /metrics with a certificate that is mounted and renewed while the process runs."""

import logging
import ssl
from pathlib import Path

from finetune_operator.runtime.settings import Settings, SettingsError

log = logging.getLogger(__name__)


def metrics_tls(settings: Settings) -> ssl.SSLContext | None:
    """Returns the context of a server with tls.crt and tls.key of a folder, as a Secret of type kubernetes.io/tls.

    None for plain HTTP. With ``metrics_client_auth`` clients must present a certificate that the folder's ca.crt has
    signed. Files that are replaced serve the connections that follow, and what they replaced is no longer used or
    trusted. Raises SettingsError if a file cannot be used.
    """
    folder, client_auth = settings.metrics_tls_dir, settings.metrics_client_auth
    if folder is None:
        return None
    used = _version(folder)
    try:
        context = current = _loaded(folder, client_auth=client_auth)
    except OSError as error:
        needed = "tls.crt, tls.key and ca.crt" if client_auth else "tls.crt and tls.key"
        raise SettingsError(f"FINETUNE_METRICS_TLS_DIR={folder}: {needed} cannot be used: {error}") from error

    def renew(connection: ssl.SSLObject, _server_name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal used, current
        found = _version(folder)
        # A context takes milliseconds to load, and anyone may connect.
        if found != used:
            try:
                current = _loaded(folder, client_auth=client_auth)
            except OSError as error:
                # Half of a renewal: the next connection finds the rest.
                log.warning("the renewed certificate of /metrics cannot be used: %s", error)
            else:
                used = found
        connection.context = current

    # Called at every handshake, before the certificate is sent, also if the client names no server.
    context.sni_callback = renew
    return context


def _loaded(folder: Path, *, client_auth: bool) -> ssl.SSLContext:
    """Returns a new context of the files: one that exists would trust a replaced authority beside the new one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    if client_auth:
        context.load_verify_locations(folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session is not verified again, whatever authority is trusted by then. TLS 1.3 resumes with tickets
        # alone, TLS 1.2 also without.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context


def _version(folder: Path) -> tuple[int, ...]:
    """Returns what changes when a file is replaced; 0 stands for a file that is not there."""
    times = []
    for name in ("tls.crt", "tls.key", "ca.crt"):
        try:
            times.append((folder / name).stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return tuple(times)
