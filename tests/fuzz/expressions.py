"""Throws text at the expression language: python tests/fuzz/expressions.py --count 10000000 [--seed 1] [--jobs 2]

A third is grown from the grammar, a third is that with something broken, the rest is noise. What must hold: nothing but ExprError is ever
raised, its offset lies within the text, the canonical text parses to the same expression, and neither time nor memory gets out of hand.
The exit code is 1 if any of that failed.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

from perdure.core.expressions import ExprError, check, from_json, parse, template, to_text
from perdure.core.expressions.functions import FUNCTIONS

SLOW_S = 0.05
"""One expression may take this long before it is worth a warning."""
HANGS_S = 2.0
"""One expression that takes longer than this is a failure."""
GROWTH_MB_MAX = 256
"""What a process may grow by, over all of its expressions."""
DEEP_CHECKS = 8
"""One expression in this many is also put through everything but parse and evaluate."""
FAILURES_SHOWN = 20


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


SCOPES: list[dict[str, Any]] = [
    {"a": 1, "b": "text", "input": {"a": {"b": [1, 2, {"c": None}]}, "b": True, "day": "2026-01-01"}, "now": 1.5},
    {"a": {"b": {"c": 1}}, "b": [1, 2, 3], "input": [], "now": "never", "x-y": -1},
    {"a": list(range(5_000)), "b": "ab" * 20_000, "input": {str(n): n for n in range(500)}, "now": 0, "x-y": None},
    {"a": 2**63 - 1, "b": 1e308, "input": {"a": 10**5000, "b": math.nan, "day": math.inf}, "now": -0.0},
    {"a": deep(900), "b": "\ud800\x00é😀", "input": {"": "", "a b": [deep(90)] * 50}, "now": True},
    {},
]
TYPES: dict[str, Any] = {
    "a": {"type": ["integer", "null"]},
    "b": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}}]},
    "input": {"type": "object", "properties": {"a": {"type": "object"}, "b": {"enum": [True, 1]}}},
}

LEAVES = [
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "2.5",
    "1e308",
    "9223372036854775807",
    "''",
    "'a'",
    '"b"',
    "'\\u00e9'",
    "[]",
    "{}",
    "a",
    "b",
    "input",
    "$input",
    "now()",
    "x-y",
    "nowhere",
    "a.b",
    "a.b.c",
    "b[0]",
    "input.day",
    "input.a.b[2].c",
    "input['a",
    "b']",
    "a[-1]",
    "input[b]",
    "b.0",
    "$in",
    "'a,b,c'",
    "3",
    "100000",
    "'1'",
    "x",
    "r'\\d+'",
    "'(a|b)*c'",
    "'2026-01-01T00:00:00Z'",
    "timestamp('2026-06-01T12:00:00.5+02:00')",
    "duration('1h30m')",
    "'PT5M'",
    "'Europe/Paris'",
    "0x1F",
    "2u",
    "'[1,{\"a\":2}]'",
    "'",
    "x",
    "'",
]
SHAPES = """%s+%s|%s-%s|%s - %s|%s*%s|%s/%s|%s%%%s|-%s|%s==%s|%s!=%s|%s<%s|%s>%s|%s<=%s|%s ge %s|%s in %s|%s not in %s|%s contains %s
|%s and %s|%s or %s|%s&&%s|%s||%s|not %s|!%s|exists %s|exists(%s)|%s??%s|%s?%s:%s|(%s)|[%s]|[%s,%s]|{'k':%s}|{a:%s,'b':%s}|%s[%s]|(%s).a
|(%s)[%s]|(%s)+(%s)|(%s)==(%s)| %s |%s and %s and %s|%s+%s+%s|[%s,%s,%s,%s]|(%s).map(x,%s)|(%s).map(x,%s,%s)|(%s).filter(a,%s)|(%s).exists(x,%s)|(%s).exists_one(x,%s)
|(%s).all(x,%s)|(%s).startsWith(%s)|(%s).contains(%s)|(%s).size()|(%s).matches(%s)|has((%s).a)|(%s).getHours()|(%s).getMonth(%s)
|timestamp(%s)+duration(%s)|timestamp(%s)-timestamp(%s)|duration(%s)<duration(%s)""".replace("\n", "").split("|")
NOISE = "ab.$[](){}'\"\\+-*/%!=<>&|?:,  \n\t019eE_nottrueinand#@é\ud800\x00"
FRAGMENTS = [
    "((((",
    "))))",
    "[[[[",
    "${",
    "$${",
    "}",
    "not ",
    "- ",
    "a ? b : ",
    "'",
    '"',
    "\\",
    "\\u",
    "..",
    "9" * 30,
    "==",
    " in ",
    "{",
]


def call_shapes() -> list[str]:
    return [
        f"{name}({','.join(['%s'] * count)})"
        for name, function in FUNCTIONS.items()
        for count in range(function.least, min(function.most, function.least + 2) + 1)
    ]


class Source:
    """An endless supply of texts, the same for the same seed."""

    POOL = 2_000
    LONG = 400

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.worth = 0.0
        """How likely the text just handed out should grow on. Whoever takes it says so before taking the next."""
        self._shapes = [(shape, shape.replace("%%", "").count("%s")) for shape in SHAPES + call_shapes()]
        self._pool = [LEAVES[n % len(LEAVES)] for n in range(self.POOL)]

    def texts(self) -> Iterator[str]:
        random, pool, shapes = self._random.random, self._pool, self._shapes
        while True:
            shape, holes = shapes[int(random() * len(shapes))]
            grown = shape % tuple([pool[int(random() * self.POOL)] for _ in range(holes)])
            self.worth = 0.0
            yield grown
            # What was grown is the stock of what grows next; leaves keep it from being all thicket.
            keep = len(grown) < self.LONG and random() < self.worth
            pool[int(random() * self.POOL)] = grown if keep else LEAVES[int(random() * len(LEAVES))]
            yield self._broken(grown)
            yield self._noise()

    def _broken(self, text: str) -> str:
        random = self._random.random
        at, stop = sorted((int(random() * (len(text) + 1)), int(random() * (len(text) + 1))))
        match int(random() * 6):
            case 0:
                return text[:at] + text[at + 1 :]
            case 1:
                return text[:at] + text[stop:]
            case 2:
                return text[:at] + NOISE[int(random() * len(NOISE))] + text[at:]
            case 3:
                return text[:at] + FRAGMENTS[int(random() * len(FRAGMENTS))] * (1 + int(random() * 3)) + text[stop:]
            case 4:
                return text[:stop] + text[at:]
            case _:
                return text[at:stop] * (1 + int(random() * 20)) + text[:at]

    def _noise(self) -> str:
        random = self._random
        if random.random() < 0.2:
            return random.randbytes(int(random.random() * 24)).decode("latin-1")
        return "".join(random.choices(NOISE, k=int(random.random() * 16)))

    def value(self, depth: int = 3) -> Any:
        """JSON that looks like an expression."""
        random = self._random
        if depth == 0 or random.random() < 0.3:
            return random.choice([None, True, 5, -2.5, "$shared.a", "$params['x y']", "a.b", "$", "x", 2**70, math.nan])
        if random.random() < 0.3:
            return [self.value(depth - 1) for _ in range(random.randrange(3))]
        keys = random.choice(
            [["eq"], ["and"], ["not"], ["exists"], ["in"], ["path"], ["value"], ["op", "args"], ["op", "x"], ["zz"]]
        )
        return {key: random.choice(["eq", "not", 5]) if key == "op" else self.value(depth - 1) for key in keys}


@dataclass
class Tally:
    done: int = 0
    parsed: int = 0
    valued: int = 0
    slow: list[tuple[float, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    grown_mb: float = 0.0

    def add(self, other: Tally) -> None:
        self.done += other.done
        self.parsed += other.parsed
        self.valued += other.valued
        self.slow += other.slow
        self.failures += other.failures
        self.grown_mb = max(self.grown_mb, other.grown_mb)


def put_through(text: str, scope: dict[str, Any], tally: Tally) -> None:
    """Parse and evaluate."""
    try:
        expr = parse(text)
    except ExprError as exc:
        if not 0 <= exc.offset <= len(text):
            tally.failures.append(f"offset {exc.offset} of {text!r}")
        return
    tally.parsed += 1
    try:
        expr.evaluate(scope.__getitem__)
    except ExprError as exc:
        if not 0 <= exc.offset <= len(expr.text):
            tally.failures.append(f"offset {exc.offset} of {expr.text!r} in evaluation")
    else:
        tally.valued += 1


def put_through_all(text: str, scope: dict[str, Any], value: Any, tally: Tally) -> None:
    """Everything else: canonical text, types, templates, JSON."""
    try:
        expr = parse(text)
        if parse(to_text(expr)) != expr:
            tally.failures.append(f"{text!r} is not what its canonical text is")
        check(expr, TYPES)
    except ExprError:
        pass
    for make in (lambda: template.make({"a": [text, f"x${{ {text} }}"]}), lambda: template.make(value)):
        try:
            made = make()
            made.evaluate(scope.__getitem__)
        except ExprError as exc:
            str(exc)
    try:
        expr = from_json(value)
    except ExprError as exc:
        str(exc)
        return
    if parse(to_text(expr)) != expr:
        tally.failures.append(f"{value!r} is not what its canonical text is")


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def fuzz(count: int, seed: int, say: Callable[[str], None] | None = None) -> Tally:
    """`count` texts from one seed, in this process."""
    tally, source, clock = Tally(), Source(seed), time.perf_counter
    began = clock()
    base_mb = memory_mb()
    for text in source.texts():
        if tally.done >= count:
            break
        tally.done += 1
        scope = SCOPES[tally.done % len(SCOPES)]
        start = clock()
        parsed, valued = tally.parsed, tally.valued
        try:
            put_through(text, scope, tally)
            source.worth = 0.8 if tally.valued > valued else 0.2 if tally.parsed > parsed else 0.0
            if tally.done % DEEP_CHECKS == 0:
                put_through_all(text, scope, source.value(), tally)
        except Exception as exc:
            tally.failures.append(f"{type(exc).__name__}: {exc} from {text!r} in scope {tally.done % len(SCOPES)}")
        took = clock() - start
        if took > SLOW_S:
            tally.slow.append((took, text))
            if took > HANGS_S:
                tally.failures.append(f"{took:.1f} s for {text!r}")
        if tally.done % 20_000 == 0 or tally.done == count:
            tally.grown_mb = memory_mb() - base_mb
            if tally.grown_mb > GROWTH_MB_MAX:
                tally.failures.append(f"grew by {tally.grown_mb:.0f} MB within {tally.done} expressions")
                break
            if say and tally.done % 200_000 == 0:
                say(report(tally, clock() - began, seed))
    return tally


def report(tally: Tally, seconds: float, seed: int | str) -> str:
    return (
        f"seed {seed}: {tally.done} texts in {seconds:.0f} s ({tally.done / max(seconds, 1e-9):.0f}/s), {tally.parsed} parsed, "
        f"{tally.valued} valued, {len(tally.slow)} over {SLOW_S * 1000:.0f} ms, +{tally.grown_mb:.0f} MB, {len(tally.failures)} failures"
    )


def say(line: str) -> None:
    print(line, flush=True)


def shift(count: int, seed: int) -> Tally:
    return fuzz(count, seed, say)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the expression language.")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    total, began = Tally(), time.perf_counter()
    with ProcessPoolExecutor(args.jobs) as pool:
        seeds = range(args.seed, args.seed + args.jobs)
        for tally in pool.map(shift, [math.ceil(args.count / args.jobs)] * args.jobs, seeds):
            total.add(tally)
    for took, text in sorted(total.slow, reverse=True)[:FAILURES_SHOWN]:
        say(f"slow: {took * 1000:.0f} ms for {text[:300]!r}")
    for failure in total.failures[:FAILURES_SHOWN]:
        say(f"FAILED: {failure[:1000]}")
    say(report(total, time.perf_counter() - began, f"{args.seed}..{args.seed + args.jobs - 1}"))
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
