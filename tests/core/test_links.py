"""Tokens of signed links: what was signed comes back, and nothing else does."""

from __future__ import annotations

import base64
from hmac import digest

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.limits import LINK_CHARS_MAX
from perdure.core.links import Link, read, sign

SECRET, OTHER = bytes(range(32)), bytes(range(1, 33))
LINK = Link("approval", "default", bytes(16), "publish", "ada", 1_700_000_000_000_000, bytes(range(16)))

links = st.builds(
    Link,
    kind=st.sampled_from(["approval", "promise"]),
    namespace=st.text(max_size=20),
    run_id=st.binary(min_size=16, max_size=16),
    name=st.text(max_size=50),
    who=st.text(max_size=50),
    expires_us=st.integers(0, 2**62),
    id=st.binary(min_size=16, max_size=16),
)


@given(links)
def test_what_was_signed_comes_back(link: Link) -> None:
    token = sign(link, SECRET)
    assert read(token, SECRET) == link
    assert token.replace("-", "").replace("_", "").isalnum(), "it goes into an address as it is"


@given(links)
def test_another_secret_opens_nothing(link: Link) -> None:
    assert read(sign(link, SECRET), OTHER) is None


def test_no_character_can_be_changed_added_or_left_out() -> None:
    token = sign(LINK, SECRET)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for i in range(len(token)):
        for c in alphabet:
            if c != token[i]:
                assert read(token[:i] + c + token[i + 1 :], SECRET) is None, (i, c)
        assert read(token[:i] + token[i + 1 :], SECRET) is None
    for tail in ("A", "=", "==", " ", "\n", "."):
        assert read(token + tail, SECRET) is None


@given(st.text(max_size=200))
def test_any_text_is_no_link(text: str) -> None:
    assert read(text, SECRET) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_no_link(data: bytes) -> None:
    assert read(base64.urlsafe_b64encode(data).rstrip(b"=").decode(), SECRET) is None


def test_a_signature_for_another_purpose_is_none_for_a_link() -> None:
    body = msgspec.msgpack.encode(LINK)
    token = base64.urlsafe_b64encode(body + digest(SECRET, body, "sha256")).rstrip(b"=").decode()
    assert read(token, SECRET) is None


def test_a_long_text_is_not_even_read() -> None:
    assert read("A" * (LINK_CHARS_MAX + 1), SECRET) is None


def test_the_longest_link_fits() -> None:
    longest = Link("approval", "n" * 100, bytes(16), "ä" * 200, "🙂" * 200, 2**62, bytes(16))
    assert len(sign(longest, SECRET)) <= LINK_CHARS_MAX
