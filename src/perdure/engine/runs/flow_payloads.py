"""Stored values of declarative runs. What a flow only passes on stays a reference; what its expressions read inside of is loaded here.

A decision that needs a value is given up, the value is loaded, and the run is decided again from its history, as after the loss of a worker.
Values that are loaded stay with the run, so this happens once for each, and a few at a time where a list of them is read.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from perdure.core import events as ev
from perdure.core import payload_fields
from perdure.core.errors import PayloadTooLarge
from perdure.core.limits import FLOW_PAYLOAD_BYTES_MAX, FLOW_PAYLOADS_MAX
from perdure.core.payloads import MARK, Reference, values_of, with_contents
from perdure.core.work import Decided
from perdure.engine.payloads import Payloads
from perdure.engine.runs.run import ActiveRun

_GIVEN = frozenset((*ev.FACTS, ev.NodeOverridden))
"""Events whose values a decider reads."""


class FlowPayloads:
    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads

    def readable(self, run: ActiveRun, records: list[ev.Recorded]) -> list[ev.Recorded]:
        """The records with what was loaded of their values."""
        stored = run.stored
        if not stored:
            return records
        facts = [r.event for r in records if type(r.event) in _GIVEN]
        found = (v for event in facts for p in payload_fields.payloads_of(event) for v in values_of(p))
        run.unloaded = [v for v in islice(found, FLOW_PAYLOADS_MAX) if v.sha256 not in stored]

        def loaded(payload: bytes) -> bytes:
            return with_contents(payload, stored) if payload.startswith(MARK) else payload

        return [
            ev.Recorded(r.seq, r.at_us, payload_fields.replaced(r.event, loaded)) if type(r.event) in _GIVEN else r
            for r in records
        ]

    async def load(self, run: ActiveRun, wanted: list[Reference]) -> None:
        """PayloadTooLarge when the expressions of one run read more than a server keeps for it."""
        stored = run.stored if run.stored is not None else {}
        missing = {r.sha256: r for r in wanted if r.sha256 not in stored}
        size = sum(map(len, stored.values())) + sum(r.size for r in missing.values())
        if size > FLOW_PAYLOAD_BYTES_MAX or len(stored) + len(missing) > FLOW_PAYLOADS_MAX:
            raise PayloadTooLarge(
                f"the expressions of this flow read {len(stored) + len(missing)} stored values of {size:,} bytes, over the limit "
                f"FLOW_PAYLOAD_BYTES_MAX={FLOW_PAYLOAD_BYTES_MAX:,} or FLOW_PAYLOADS_MAX={FLOW_PAYLOADS_MAX:,}. Pass the values to a task, and "
                "let it return what the flow decides by"
            )
        # A flow that reads one value of a list reads the next ones as well: twice as many each time, so that few decisions are given up.
        for reference in run.unloaded:
            if len(missing) >= 2 * len(stored) + len(wanted) or size + reference.size > FLOW_PAYLOAD_BYTES_MAX:
                break
            if reference.sha256 not in missing:
                missing[reference.sha256] = reference
                size += reference.size
        transfer = self._payloads.of(run.ns).transfer
        contents = await asyncio.gather(*(transfer.fetch(reference) for reference in missing.values()))
        run.stored = stored | dict(zip(missing, contents, strict=True))

    def is_heavy(self, run: ActiveRun, d: Decided) -> bool:
        return bool(d.commands) and self._payloads.of(run.ns).transfer.are_heavy(d.commands)

    async def offload(self, run: ActiveRun, d: Decided) -> Decided:
        """The decision with its large values stored."""
        transfer = self._payloads.of(run.ns).transfer
        d.commands = [await transfer.offload_record(command, "a value of the flow") for command in d.commands]
        return d
