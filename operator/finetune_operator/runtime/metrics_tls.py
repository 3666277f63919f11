"""TLS of /metrics with a certificate that is mounted and renewed while the process runs."""

import logging
import ssl
from pathlib import Path

from finetune_operator.runtime.settings import Settings, SettingsError

log = logging.getLogger(__name__)


def metrics_tls(settings: Settings) -> ssl.SSLContext | None:
    """Returns the context of /metrics; None for plain HTTP. Raises SettingsError if a file cannot be used."""
    folder = settings.metrics_tls_dir
    if folder is None:
        return None
    try:
        return renewed_context(folder, client_auth=settings.metrics_client_auth)
    except OSError as error:
        needed = "tls.crt, tls.key and ca.crt" if settings.metrics_client_auth else "tls.crt and tls.key"
        raise SettingsError(f"FINETUNE_METRICS_TLS_DIR={folder}: {needed} cannot be used: {error}") from error


def renewed_context(folder: Path, *, client_auth: bool) -> ssl.SSLContext:
    """Returns the context of a server with tls.crt and tls.key of ``folder``, as a Secret of type kubernetes.io/tls.

    With ``client_auth`` clients must present a certificate that the folder's ca.crt has signed. Files that are replaced
    serve the connections that follow. Raises OSError, of which ssl.SSLError is one, if a file cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def load() -> None:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        if client_auth:
            context.load_verify_locations(folder / "ca.crt")

    def version() -> int:
        try:
            return (folder / "tls.crt").stat().st_mtime_ns
        except OSError:
            return 0

    load()
    loaded = version()
    if client_auth:
        context.verify_mode = ssl.CERT_REQUIRED

    def renew(_connection: object, _server_name: str | None, _context: object) -> None:
        nonlocal loaded
        found = version()
        if found == loaded:
            return
        try:
            load()
        except OSError as error:
            # Half of a renewal: the next connection finds the rest.
            log.warning("the renewed certificate of /metrics cannot be used: %s", error)
        else:
            loaded = found

    # Called at every handshake; what it loads serves the next one.
    context.sni_callback = renew
    return context
