"""An identity provider over HTTP, in a thread: the authorization code with PKCE, refresh tokens that are used once, and the device flow.

It holds clients to what the standards say: a code is used once, with the redirect address and the verifier it was asked for with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc.jwk import RSAKey

from tests.server.test_auth_tokens import sign

CLIENT = "perdure-web"
CLI_CLIENT = "perdure-cli"
AUDIENCE = "perdure-api"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass
class Asked:
    """An authorization request that was granted."""

    client: str
    redirect_uri: str
    challenge: str
    nonce: str


@dataclass
class Device:
    user_code: str
    state: str = "pending"
    """Or approved, denied, expired."""
    polls: int = 0


@dataclass
class OidcProvider:
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one"}))
    user: dict[str, Any] = field(
        default_factory=lambda: {
            "sub": "ada",
            "name": "Ada",
            "perdure_role": "operator",
            "perdure_namespace": "default",
        }
    )
    secret: str = ""
    """Of the client; empty: it is public."""
    refuses: str = ""
    """An error to answer authorization requests with."""
    lies: dict[str, Any] = field(default_factory=dict)
    """Claims of ID tokens that differ from what is right."""
    opaque: bool = False
    """Whether access tokens are no JWTs."""
    token_s: float = 60.0
    approves_after: int = 2
    """Questions of a device until its person has signed in; below 0: never."""
    slow_downs: int = 0
    codes: dict[str, Asked] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    refresh_tokens: set[str] = field(default_factory=set)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Requests: path, and parameters."""
    issuer: str = ""

    def __enter__(self) -> OidcProvider:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                self.answer(*provider.got(parts.path, flat(parts.query)))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0"))).decode()
                self.answer(*provider.posted(self.path, flat(body), self.headers.get("authorization", "")))

            def answer(self, status: int, body: Any, location: str = "") -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    # -- answers ---------------------------------------------------------------------------------------------------

    def got(self, path: str, given: dict[str, str]) -> tuple[Any, ...]:
        self.seen.append((path, given))
        match path:
            case "/.well-known/openid-configuration":
                return 200, self.described()
            case "/keys":
                return 200, {"keys": [self.key.as_dict(private=False)]}
            case "/authorize":
                return self.authorized(given)
            case _:
                return 404, {}

    def described(self) -> dict[str, Any]:
        paths = {"authorization": "authorize", "token": "token", "device_authorization": "device"}
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/keys",
            **{f"{name}_endpoint": f"{self.issuer}/{path}" for name, path in paths.items()},
        }

    def authorized(self, given: dict[str, str]) -> tuple[Any, ...]:
        """A person who is signed in at the provider and agrees at once."""
        if self.refuses:
            said = {"error": self.refuses, "error_description": "<b>no</b>", "state": given["state"]}
            return 302, {}, f"{given['redirect_uri']}?{urlencode(said)}"
        assert given["response_type"] == "code"
        assert given["code_challenge_method"] == "S256"
        assert "openid" in given["scope"].split()
        code = secrets.token_urlsafe(16)
        self.codes[code] = Asked(given["client_id"], given["redirect_uri"], given["code_challenge"], given["nonce"])
        back = {"code": code, "state": given["state"], "iss": self.issuer, "session_state": "x"}
        return 302, {}, f"{given['redirect_uri']}?{urlencode(back)}"

    def posted(self, path: str, given: dict[str, str], authorization: str) -> tuple[Any, ...]:
        self.seen.append((path, given))
        if path == "/device":
            device = Device(user_code="WDJB-MJHT")
            code = secrets.token_urlsafe(16)
            self.devices[code] = device
            uri = f"{self.issuer}/activate"
            return 200, {
                "device_code": code,
                "user_code": device.user_code,
                "verification_uri": uri,
                "verification_uri_complete": f"{uri}?user_code={device.user_code}",
                "expires_in": 300,
                "interval": 0,
            }
        if path != "/token":
            return 404, {}
        match given.get("grant_type"):
            case "authorization_code":
                return self.exchanged(given, authorization)
            case "refresh_token":
                return self.refreshed(given)
            case grant if grant == DEVICE_GRANT:
                return self.polled(given)
            case _:
                return 400, {"error": "unsupported_grant_type"}

    def exchanged(self, given: dict[str, str], authorization: str) -> tuple[Any, ...]:
        asked = self.codes.pop(given.get("code", ""), None)
        if self.secret:
            right = base64.b64encode(f"{CLIENT}:{self.secret}".encode()).decode()
            if authorization != f"Basic {right}":
                return 401, {"error": "invalid_client"}
            client = CLIENT
        else:
            client = given.get("client_id", "")
        proof = base64.urlsafe_b64encode(hashlib.sha256(given.get("code_verifier", "").encode()).digest())
        if asked is None or (asked.client, asked.redirect_uri) != (client, given.get("redirect_uri")):
            return 400, {"error": "invalid_grant"}
        if proof.rstrip(b"=").decode() != asked.challenge:
            return 400, {"error": "invalid_grant", "error_description": "PKCE"}
        return 200, self.tokens(client, nonce=asked.nonce)

    def polled(self, given: dict[str, str]) -> tuple[Any, ...]:
        device = self.devices.get(given.get("device_code", ""))
        if device is None or given.get("client_id") != CLI_CLIENT:
            return 400, {"error": "invalid_grant"}
        device.polls += 1
        if device.polls <= self.slow_downs:
            return 400, {"error": "slow_down"}
        if device.state == "pending" and 0 <= self.approves_after < device.polls:
            device.state = "approved"
        if device.state != "approved":
            words = {"pending": "authorization_pending", "denied": "access_denied", "expired": "expired_token"}
            return 400, {"error": words[device.state]}
        return 200, self.tokens(CLI_CLIENT)

    def refreshed(self, given: dict[str, str]) -> tuple[Any, ...]:
        token = given.get("refresh_token", "")
        if token not in self.refresh_tokens:
            return 400, {"error": "invalid_grant"}
        self.refresh_tokens.remove(token)
        return 200, self.tokens(CLI_CLIENT)

    def tokens(self, client: str, **more: Any) -> dict[str, Any]:
        refresh = secrets.token_urlsafe(16)
        self.refresh_tokens.add(refresh)
        access = "opaque-" + refresh if self.opaque else self.token(aud=AUDIENCE)
        return {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": self.token_s,
            "refresh_token": refresh,
            "id_token": self.token(**{"aud": client, **more, **self.lies}),
        }

    def token(self, **claims: Any) -> str:
        now = time.time()
        said = {"iss": self.issuer, "iat": now, "exp": now + self.token_s, **self.user, **claims}
        return sign({"alg": "RS256", "kid": "one"}, said, self.key)


def flat(query: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(query).items()}
