"""Deferred starts: debounced, batched, or deduplicated. The pure part: the options, and how inputs are joined.

    debounce  the last of several starts counts, once none has come for a while: due = min(now + quiet, first + max_delay)
    batch     the lists that several starts bring are joined, in order, into the list that one run gets
    dedup     a second start under a key is answered with the run of the first, for a time or until that run has ended

Laws:

1. A start asks for one of these at most, and for none of them together with a key of its own, which is another way to say the same.
2. The id of the run that will come is drawn with the first start, and every start under the key is answered with it.
3. `joined` of inputs is the input that one call with all the items would have had.
"""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.durations import human
from perdure.core.errors import InvalidInput
from perdure.core.limits import BATCH_ITEMS_MAX, DEFERRED_START_US_MAX
from perdure.core.names import checked_name


class DebounceSpec(msgspec.Struct, frozen=True, tag="debounce"):
    key: str
    quiet_us: int
    """The run begins when no start has come for this long."""
    max_delay_us: int = 0
    """And at the latest this long after the first one; 0: DEFERRED_START_US_MAX."""

    @property
    def latest_us(self) -> int:
        return self.max_delay_us or DEFERRED_START_US_MAX


class BatchSpec(msgspec.Struct, frozen=True, tag="batch"):
    key: str
    size: int
    """The run begins with so many items."""
    max_delay_us: int
    """And at the latest this long after the first one."""


class DedupSpec(msgspec.Struct, frozen=True):
    key: str
    within_us: int = 0
    """How long the key belongs to the first run; 0: until that run has ended."""


Later = DebounceSpec | BatchSpec


class Gathered(msgspec.Struct, frozen=True):
    """A call whose one argument is a list."""

    argument: str
    """Its name; "*" for a call by position."""
    items: list[msgspec.Raw]
    """As they were written: nothing is decoded on the way."""


def check_later(later: Later | None, dedup: DedupSpec | None, run_key: str) -> None:
    """InvalidInput for what can never work."""
    asked = [
        word
        for word, said in (
            ("debounce", isinstance(later, DebounceSpec)),
            ("batch", isinstance(later, BatchSpec)),
            ("dedup", dedup is not None),
            ("a key of its own", bool(run_key)),
        )
        if said
    ]
    if len(asked) > 1:
        raise InvalidInput(f"a start has {' and '.join(asked)}; each of these decides alone which run it is: keep one")
    match later:
        case DebounceSpec():
            _check_time("quiet of a debounce", later.quiet_us)
            _check_time("max_delay of a debounce", later.latest_us)
            if later.latest_us < later.quiet_us:
                raise InvalidInput(
                    f"debounce: max_delay {human(later.latest_us)} is shorter than quiet {human(later.quiet_us)}; make it longer"
                )
        case BatchSpec():
            _check_time("max_delay of a batch", later.max_delay_us)
            if not 1 <= later.size <= BATCH_ITEMS_MAX:
                raise InvalidInput(
                    f"batch: size is {later.size}; it must lie between 1 and BATCH_ITEMS_MAX={BATCH_ITEMS_MAX}"
                )
        case None:
            pass
    if dedup is not None and dedup.within_us:
        _check_time("within of a dedup", dedup.within_us)
    for one in (later, dedup):
        if one is not None:
            checked_name("key", one.key)


def _check_time(what: str, us: int) -> None:
    if not 0 < us <= DEFERRED_START_US_MAX:
        raise InvalidInput(f"{what} must lie between 0 and DEFERRED_START_US_MAX ({human(DEFERRED_START_US_MAX)})")


_CALL: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def gathered(data: bytes) -> Gathered:
    """The one list of a call, which a batch joins with those of others. InvalidInput when the call is another."""
    try:
        call = _CALL.decode(data)
        if len(call) == 1:
            name, value = next(iter(call.items()))
            items = _ITEMS.decode(value)
            if name == "*" and len(items) == 1:
                items = _ITEMS.decode(items[0])
                return Gathered(name, items)
            if name not in ("*", "**"):
                return Gathered(name, items)
    except msgspec.DecodeError:
        pass
    raise InvalidInput(
        'a batched start brings one list, such as {"events": [...]}: the lists of all starts under the key are joined, '
        "and one run gets the whole; this one brings something else"
    )


def joined(inputs: list[bytes]) -> bytes:
    """One call for several, whose lists have the same argument. Never longer than they are together."""
    parts = [gathered(data) for data in inputs]
    items = b",".join(bytes(item) for part in parts for item in part.items)
    argument = parts[0].argument
    body = b"[[%b]]" % items if argument == "*" else b"[%b]" % items
    return b"{%b:%b}" % (msgspec.json.encode(argument), body)


def same_shape(first: str, argument: str) -> None:
    if first != argument:
        raise InvalidInput(
            f"the starts of one batch give their list the same way: the first one under this key gave it {_given(first)}, this one {_given(argument)}"
        )


def _given(argument: str) -> str:
    return "by position" if argument == "*" else f"as {argument!r}"
