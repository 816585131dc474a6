"""Who may read, and what a page may do.

On loopback the host name of a request must be a local one, so that a foreign page cannot reach the dashboard through
a name it controls. Bound wider, every request needs the token that was printed at the start. The content policy
allows the dashboard's own files and nothing else: no inline script or style, no other host.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "podium_token"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Checks each request before the application sees it, and puts the headers on each answer."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refuse(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return JSONResponse({"error": "the dashboard only reads: GET and HEAD"}, 405, {"Allow": "GET, HEAD"})
        if self._token is None:
            host = headers.get("host", "")
            name = host[1 : host.find("]")] if host.startswith("[") else host.rpartition(":")[0] or host
            if not is_loopback(name):
                return JSONResponse({"error": f"host {host!r} is not this machine's loopback"}, 421)
            return None
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token")
        if given is not None and self._is_token(given):
            return self._remember()
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        if self._is_token(bearer) or self._is_token(cookie):
            return None
        return JSONResponse({"error": "open the address with the token that podium dashboard printed"}, 401)

    def _is_token(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _remember(self) -> Response:
        """From the address with the token to the one without; the browser keeps the token where no script reads it."""
        assert self._token is not None
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
        return response
