"""Sends notices to an HTTP endpoint, as CloudEvents in structured mode that are signed as Standard Webhooks are."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import time
from typing import Any, Self

import aiohttp

from finetune_operator.reconcile.notifications import DeliveryError
from finetune_operator.runtime.settings import Settings, SettingsError

#: Seconds for one request.
_SECONDS = 10
_CONTENT_TYPE = "application/cloudevents+json; charset=UTF-8"
_PREFIX = "whsec_"
#: Refusals of the moment: timeout, too early, too many requests.
_PASSING = (408, 425, 429)
#: Bytes of a key, after the specification.
_SHORTEST, _LONGEST = 24, 64


def read_keys(file: Path) -> Sequence[bytes]:
    """Returns the keys of a file, one in each line: ``whsec_`` and 24 to 64 bytes in base64.

    Raises ValueError, which does not contain a key, and OSError.
    """
    keys = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split(), 1):
        try:
            key = base64.b64decode(line.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            key = b""
        if not line.startswith(_PREFIX) or not _SHORTEST <= len(key) <= _LONGEST:
            raise ValueError(
                f"key {number} of {file} is not {_PREFIX} and {_SHORTEST} to {_LONGEST} bytes in base64: "
                'make one with echo "whsec_$(openssl rand -base64 32)"'
            )
        keys.append(key)
    if not keys:
        raise ValueError(f'{file} has no key: make one with echo "whsec_$(openssl rand -base64 32)"')
    return keys


def signature(keys: Sequence[bytes], notice: str, timestamp: int, body: bytes) -> str:
    """Returns the header ``webhook-signature``, with one signature for each key."""
    content = f"{notice}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, content, hashlib.sha256) for key in keys)
    return " ".join(f"v1,{base64.b64encode(each).decode()}" for each in digests)


class Webhook:
    """The endpoint. Close it after use.

    Args:
        url: where notices are posted.
        key_file: keys of the signature, read for each notice, so that they can be replaced while the process runs.
        now: the wall clock in seconds since 1970.
    """

    def __init__(self, url: str, key_file: Path, *, now: Callable[[], float] = time) -> None:
        self._url, self._key_file, self._now = url, key_file, now
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """Returns the endpoint of the settings; None without one. Raises SettingsError if there is no valid key."""
        if settings.webhook_url is None:
            return None
        if settings.webhook_key_file is None:
            raise SettingsError(
                "FINETUNE_WEBHOOK_URL needs FINETUNE_WEBHOOK_KEY_FILE: notices are always signed"
            )
        try:
            read_keys(settings.webhook_key_file)
        except (OSError, ValueError) as error:
            raise SettingsError(f"FINETUNE_WEBHOOK_KEY_FILE={settings.webhook_key_file}: {error}") from error
        return cls(settings.webhook_url, settings.webhook_key_file)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def deliver(self, notice: str, event: Mapping[str, Any]) -> None:
        """Posts one notice. Raises DeliveryError unless the answer is 2xx; redirects are not followed."""
        if self._session is None:
            # Proxies and their exceptions as for storage: HTTPS_PROXY, NO_PROXY.
            self._session = aiohttp.ClientSession(
                trust_env=True, timeout=aiohttp.ClientTimeout(total=_SECONDS), auto_decompress=False
            )
        body = json.dumps(event).encode()
        timestamp = int(self._now())
        try:
            signed = signature(read_keys(self._key_file), notice, timestamp, body)
        except (OSError, ValueError) as error:
            raise DeliveryError(f"the webhook's key cannot be used: {error}") from error
        headers = {
            "Content-Type": _CONTENT_TYPE,
            "webhook-id": notice,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signed,
        }
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise DeliveryError(
                        f"the webhook answers {answer.status}, expected 2xx",
                        final=400 <= answer.status < 500 and answer.status not in _PASSING,
                    )
        except aiohttp.ClientError as error:
            # The others may contain the whole URL, and with it what identifies the sender.
            text = str(error) if isinstance(error, aiohttp.ClientConnectorError) else type(error).__name__
            raise DeliveryError(f"the webhook cannot be reached: {text}") from error
        except TimeoutError as error:
            raise DeliveryError(f"the webhook does not answer within {_SECONDS} s") from error
        except (OSError, ValueError) as error:
            # Of the URL or of a proxy; its text may contain them.
            raise DeliveryError(f"the webhook cannot be reached: {type(error).__name__}") from error
