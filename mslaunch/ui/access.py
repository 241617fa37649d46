"""Who may ask the server for anything: a token, a Host header that no foreign page can forge, and strict headers."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OWN_HEADER = "x-mslaunch"
"""A page of another origin cannot send it without being asked for, and that is never granted."""
LARGEST_HEAD = 16 << 10
"""Bytes of the query and all headers of a request; the other servers of a machine share its cookies."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer to somebody who may not have one."""

    status: int
    text: str


NO_TOKEN = Refusal(401, "Open the address that `mslaunch ui` printed: it has a token, which this browser does not.")
WRONG_HOST = Refusal(421, "This name is not this server's. Open it by its address, or as localhost.")
WRONG_METHOD = Refusal(405, "Only GET and POST are answered.")
TOO_LARGE = Refusal(431, f"The headers and the query of a request may have {LARGEST_HEAD} bytes.")
FOREIGN = Refusal(403, "Only the page of this server may do that.")


@dataclass(frozen=True, slots=True)
class PageAccess:
    """What a request needs to be answered."""

    token: str
    cookie: str  # its name; ports share cookies, so it has the port in it
    names: frozenset[str] = frozenset()  # host names beside localhost and addresses

    def judge(self, method: str, headers: dict[str, str]) -> Refusal | None:
        """Return why a request is refused; None where it is answered."""
        if method not in ("GET", "HEAD", "POST"):
            return WRONG_METHOD
        if not self._is_known_host(headers.get("host", "")):
            return WRONG_HOST
        if not self._has_token(headers):
            return NO_TOKEN
        if method != "POST":
            return None
        own = headers.get("origin") is None or urlsplit(headers["origin"]).netloc == headers.get("host")
        own = own and OWN_HEADER in headers and headers.get("sec-fetch-site", "same-origin") == "same-origin"
        return None if own else FOREIGN

    def is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())

    def _is_known_host(self, host: str) -> bool:
        """A name that a foreign page has made to lead here is not among them; an address cannot be made to."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name == "localhost" or name in self.names or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def _has_token(self, headers: dict[str, str]) -> bool:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(bearer.strip()):
            return True
        for pair in headers.get("cookie", "").split(";"):
            name, _, value = pair.partition("=")
            if name.strip() == self.cookie:
                return self.is_token(value.strip())
        return False


class AccessGuard:
    """Answers for the application where a request is refused; puts the strict headers on every answer."""

    def __init__(self, app: App, access: PageAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        size = len(scope["query_string"]) + sum(len(name) + len(value) for name, value in scope["headers"])
        if size > LARGEST_HEAD:
            await _refuse(TOO_LARGE, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if tokens and scope["method"] == "GET" and scope["path"] == "/" and self._access.is_token(tokens[0]):
            headers["authorization"] = f"Bearer {tokens[0]}"
        else:
            tokens = None
        refusal = self._access.judge(scope["method"], headers)
        if refusal is not None:
            await _refuse(refusal, send)
        elif tokens:  # they go into a cookie that no script reads, and leave an address without them
            cookie = f"{self._access.cookie}={self._access.token}; Path=/; HttpOnly; SameSite=Strict"
            await _answer(send, 303, b"", {"Location": "/", "Set-Cookie": cookie})
        else:
            await self._app(scope, receive, _with_headers(send))


async def _refuse(refusal: Refusal, send: Send) -> None:
    await _answer(send, refusal.status, f"{refusal.text}\n".encode(), {"Content-Type": "text/plain; charset=utf-8"})


async def _answer(send: Send, status: int, body: bytes, more: dict[str, str]) -> None:
    fields = {**HEADERS, **more, "Content-Length": str(len(body))}
    pairs = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    strict = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def passed(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *strict]}
        await send(message)

    return passed
