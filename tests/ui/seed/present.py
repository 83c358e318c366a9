"""What is going on now: runs in every state, schedules, approvals, limits, events, webhooks, keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx2

Answer = dict[str, Any]


class Rest:
    def __init__(self, url: str, key: str) -> None:
        self._http = httpx2.AsyncClient(
            base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=120
        )

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self._http.request(method, path, json=body)
        if answer.status_code >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    async def start(self, workflow: str, input: Any, **more: Any) -> str:
        run: Answer = await self.ask("POST", f"/workflows/{workflow}/runs", {"input": input, **more})
        return str(run["id"])

    async def close(self) -> None:
        await self._http.aclose()


VIEWS = {
    "Failed today": "status = failed and created > -24h",
    "Stuck": "waiting_on in (slot, task) and created < -10m",
    "Awaiting me": "waiting_on = approval",
}


async def make(rest: Rest, *, parts: int = 1272, seconds: float = 40.0) -> Answer:
    """Answers the ids of the runs that pages are shown for."""
    today = datetime.now(UTC)
    for name, query in VIEWS.items():
        await rest.ask("PUT", f"/views/{name}", {"query": query})
    me = (await rest.ask("GET", "/whoami"))["subject"]
    runs: Answer = {}
    etl = {"day": f"{today:%Y-%m-%d}", "parts": parts, "seconds": seconds}
    runs["etl"] = await rest.start(
        "nightly-etl", etl, key=f"etl-{today:%Y-%m-%d}-b", attributes={"env": "prod", "team": "data"}
    )
    runs["backfill"] = await rest.start("backfill-orders", {"days": 60})
    runs["refunds"] = await rest.start("refund-batch", {"batch": f"{today:%Y-%m-%d}", "reviewer": me})
    runs["promote"] = await rest.start("train-churn-model", {"model": "v19", "ask": True, "reviewer": me})
    runs["gpu"] = await rest.start("train-churn-model", {"model": "v20"})
    runs["agent"] = await rest.start("agent-research", {"question": "Which suppliers were late?"})
    runs["onboarding"] = await rest.start("onboarding", {"user": "lena"})
    runs["transcode"] = await rest.start("media-transcode", {"clip": "keynote.mov", "fails": 9})
    runs["export"] = await rest.start("report-export", {"report": "October"})
    runs["failed"] = await rest.start("invoice-dunning", {"invoice": "inv-7781", "fails": 9})
    cancelled = await rest.start("backfill-orders", {"days": 3}, attributes={"env": "prod"})
    await rest.ask("POST", f"/runs/{cancelled}/cancel", {"reason": "wrong partition"})
    await rest.ask("POST", f"/runs/{runs['agent']}/signals/steer", "skip archived suppliers")
    for n in range(3):
        await rest.ask("POST", "/events/invoice.paid", {"payload": {"invoice": f"inv-{7000 + n}", "amount": 120 + n}})
    await rest.ask("PUT", "/webhooks/stripe", {"event": "stripe.event"})
    await rest.ask("POST", "/schedules/churn-weekly/pause", {"reason": "GPU nodes are being moved"})
    return runs
