"""Read-only, loopback by default, a token beyond it, and a page that can load nothing but its own files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from podium.dashboard.security import is_loopback
from podium.dashboard.server import STATIC, make_app

PAGES = sorted(STATIC.rglob("*.js")) + sorted(STATIC.rglob("*.css")) + sorted(STATIC.rglob("*.html"))
TOKEN = "a-token-for-this-test"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/samples", "/js/main.js"])
def test_only_reading_is_answered(method: str, path: str, client: TestClient) -> None:
    assert client.request(method, path).status_code == 405


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/none", "/js/main.js", "/css/base.css"])
def test_every_answer_carries_the_policy(path: str, client: TestClient) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "localhost.evil:80"])
def test_a_foreign_host_name_is_refused_on_loopback(host: str, client: TestClient) -> None:
    assert client.get("/api/runs", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8642", "127.0.0.1:1", "[::1]:8642", "[::1]", "127.0.0.1"])
def test_local_host_names_are_answered(host: str, client: TestClient) -> None:
    assert client.get("/api/runs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("host", "is_local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a", False)]
)
def test_what_counts_as_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/live", "/js/main.js"])
@pytest.mark.parametrize("given", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "ä"])
def test_bound_wider_nothing_is_answered_without_the_token(path: str, given: str | None, runs: Path) -> None:
    with TestClient(make_app(runs, TOKEN), base_url="http://10.0.0.1") as client:
        params = {} if given is None else {"token": given}
        answer = client.get(path, params=params, headers={"authorization": f"Bearer {given or ''}".encode()})
        assert answer.status_code == 401
        assert "podium/one" not in answer.text


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_cannot_read(runs: Path) -> None:
    with TestClient(make_app(runs, TOKEN), base_url="http://10.0.0.1") as client:
        first = client.get("/", params={"token": TOKEN}, follow_redirects=False)
        assert (first.status_code, first.headers["location"]) == (303, "/")
        cookie = first.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert client.get("/api/runs").status_code == 200


def test_a_program_may_send_the_token_as_a_header(runs: Path) -> None:
    with TestClient(make_app(runs, TOKEN), base_url="http://10.0.0.1") as client:
        assert client.get("/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_parses_no_text_as_markup_and_loads_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text()
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc|DOMParser"
    assert not re.search(banned, text)
    addresses = set(re.findall(r"https?://[^\"'\s)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not addresses
    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=", text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_file_of_the_page_is_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300
