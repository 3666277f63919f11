"""The webhook gets signed CloudEvents, and nothing of the endpoint or its keys appears in an error."""

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from finetune_operator.reconcile.notifications import DeliveryError
from finetune_operator.runtime.settings import Settings, SettingsError
from finetune_operator.runtime.webhook import Webhook, read_keys, signature

NOW = 1_763_726_400
#: Base64 of bytes that are no real key.
KEY, NEXT = ("whsec_" + base64.b64encode(bytes([each]) * 32).decode() for each in (1, 2))
EVENT = {"specversion": "1.0", "id": "uid/ended/time", "data": {"name": "demo"}}


class Receiver:
    """An endpoint that answers with ``status``, and keeps what it was sent."""

    def __init__(self) -> None:
        self.status, self.url = 204, ""
        self.requests: list[tuple[dict[str, str], bytes]] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(({k.lower(): v for k, v in request.headers.items()}, await request.read()))
        headers = {"Location": "/elsewhere"} if self.status == 302 else {}
        return web.Response(status=self.status, headers=headers)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/{path:.*}", found.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/team?token=private"
    yield found
    await runner.cleanup()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    return file


@pytest.fixture
async def post(key_file: Path) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    opened = []

    async def deliver(url: str) -> None:
        webhook = Webhook(url, key_file, now=lambda: NOW)
        opened.append(webhook)
        await webhook.deliver(EVENT["id"], EVENT)  # type: ignore[arg-type]

    yield deliver
    for each in opened:
        await each.close()


def expected(key: str, body: bytes) -> str:
    """The signature as the specification describes it."""
    secret = base64.b64decode(key.removeprefix("whsec_"))
    content = b"uid/ended/time." + str(NOW).encode() + b"." + body
    return "v1," + base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()


async def test_an_event_is_posted_in_structured_mode_and_signed(
    receiver: Receiver, post: Callable[[str], Awaitable[None]]
) -> None:
    await post(receiver.url)
    ((headers, body),) = receiver.requests
    assert json.loads(body) == EVENT
    assert headers["content-type"].startswith("application/cloudevents+json")
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("uid/ended/time", str(NOW))
    assert headers["webhook-signature"] == expected(KEY, body)


async def test_while_a_key_is_replaced_both_sign(
    receiver: Receiver, key_file: Path, post: Callable[[str], Awaitable[None]]
) -> None:
    key_file.write_text(f"{NEXT}\n{KEY}\n")  # noqa: ASYNC240
    await post(receiver.url)
    ((headers, body),) = receiver.requests
    assert headers["webhook-signature"] == f"{expected(NEXT, body)} {expected(KEY, body)}"


@pytest.mark.parametrize("status", [302, 400, 401, 410, 500])
async def test_anything_but_2xx_is_no_delivery(
    receiver: Receiver, post: Callable[[str], Awaitable[None]], status: int
) -> None:
    receiver.status = status
    with pytest.raises(DeliveryError, match=f"answers {status}, expected 2xx"):
        await post(receiver.url)
    # A redirect could lead anywhere, and is not followed.
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/private", "http://[private/", "http://"])
async def test_an_endpoint_that_cannot_be_reached_is_no_delivery(
    post: Callable[[str], Awaitable[None]], url: str
) -> None:
    with pytest.raises(DeliveryError) as caught:
        await post(url)
    assert "/private" not in str(caught.value)


async def test_a_broken_proxy_is_no_fault_of_the_key(
    post: Callable[[str], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://:::/")
    with pytest.raises(DeliveryError, match="the webhook cannot be reached: ValueError"):
        await post("http://receiver.example/")


async def test_a_key_that_was_broken_meanwhile_is_no_delivery_and_not_shown(
    receiver: Receiver, key_file: Path, post: Callable[[str], Awaitable[None]]
) -> None:
    key_file.write_text("hunter2")  # noqa: ASYNC240
    with pytest.raises(DeliveryError, match=r"key 1 of .* is not whsec_") as caught:
        await post(receiver.url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "plain",
        "whsec_",
        "whsec_%%%",
        f"{KEY}\nplain",
        "whsec_" + base64.b64encode(b"short").decode(),
    ],
)
def test_a_key_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    with pytest.raises(ValueError, match="openssl rand"):
        read_keys(file)


def test_the_operator_does_not_start_with_a_webhook_that_it_cannot_sign(
    tmp_path: Path, key_file: Path
) -> None:
    assert Webhook.of(Settings()) is None
    assert Webhook.of(Settings(webhook_url="https://x.example", webhook_key_file=key_file))
    with pytest.raises(SettingsError, match="always signed"):
        Webhook.of(Settings(webhook_url="https://x.example"))
    with pytest.raises(SettingsError, match=r"FINETUNE_WEBHOOK_KEY_FILE=.*missing"):
        Webhook.of(Settings(webhook_url="https://x.example", webhook_key_file=tmp_path / "missing"))


def test_a_signature_is_that_of_the_specifications_own_example() -> None:
    # The reference vector of Standard Webhooks.
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = signature([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
