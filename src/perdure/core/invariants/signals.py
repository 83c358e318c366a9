"""Acknowledged signals held against what runs have received."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from perdure.core import ids
from perdure.core.invariants.findings import Findings
from perdure.core.invariants.rows import AcknowledgedSignal
from perdure.core.invariants.run_fold import RunFold
from perdure.core.messages import SignalMessage


class SignalBook:
    """Acknowledged signals against those that runs have received or have in their inbox. A signal follows its run to the one that continues it."""

    def __init__(self, signals: Iterable[AcknowledgedSignal]) -> None:
        self._sent: defaultdict[bytes, list[AcknowledgedSignal]] = defaultdict(list)
        for s in signals:
            self._sent[ids.parse(s.run)].append(s)
        self._roots = {run: run for run in self._sent}
        self._got: defaultdict[bytes, list[tuple[str, Any]]] = defaultdict(list)
        self._pending: defaultdict[bytes, list[tuple[str, Any]]] = defaultdict(list)

    def wants(self, run_id: bytes) -> bool:
        return run_id in self._roots

    def received(self, fold: RunFold) -> None:
        root = self._roots.get(fold.run_id)
        if root is not None:
            self._got[root].extend((name, msgspec.json.decode(value)) for name, value in fold.signals)
            if fold.next_run:
                self._roots[fold.next_run] = root

    def pending(self, run_id: bytes, signal: SignalMessage) -> None:
        root = self._roots.get(run_id)
        if root is not None:
            self._pending[root].append((signal.name, msgspec.json.decode(signal.value)))

    def settle(self, findings: Findings) -> None:
        for run_id, sent in self._sent.items():
            findings.examine(16, len(sent))
            there = self._got[run_id] + self._pending[run_id]
            for one in {(s.name, repr(s.value)): (s.name, s.value) for s in sent}.values():
                wanted, found = sum((s.name, s.value) == one for s in sent), there.count(one)
                if found != wanted:
                    what = f"signal {one[0]} {one[1]!r} was acknowledged {wanted} times, and is received or pending {found} times"
                    findings.violate(16, ids.text(run_id), what)
            for sender in {s.sender for s in sent}:
                mine = [(s.name, s.value) for s in sent if s.sender == sender]
                order = [one for one in there if one in mine]
                if len(order) == len(mine) and order != mine:
                    findings.violate(
                        16,
                        ids.text(run_id),
                        f"signals of {sender or 'one sender'} came in another order than they were sent",
                    )
