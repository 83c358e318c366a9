"""The other side of the executor `kubernetes`."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from perdure.executors.kubernetes import KubernetesExecutor
from perdure.executors.kubernetes.executor import KubernetesOptions
from perdure.executors.port import Executor, Job
from tests.executors.cluster import Cluster
from tests.executors.conformance import Counterpart, shell_works
from tests.executors.gate import Gate


class KubernetesJobs(Counterpart):
    name = "kubernetes"
    hard_kill_s = 60.0

    def __init__(self, cluster: Cluster, folder: Path, gate: Gate, *, store: bool = True) -> None:
        self.cluster, self.gate = cluster, gate
        self.kubeconfig = cluster.kubeconfig(folder / "kubeconfig", gate.port)
        self.store = str(folder / "store") if store else ""

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "gate"}

    def options(self, **more: Any) -> KubernetesOptions:
        return KubernetesOptions(kubeconfig=self.kubeconfig, image="local/python", store=self.store, poll_s=0.3, **more)

    def executor(self) -> Executor:
        return KubernetesExecutor(self.options())

    def work(self, kind: str, **values: Any) -> dict[str, Any]:
        return {"command": shell_works(kind, **values), "grace_s": 1}

    async def lose(self, job: Job) -> None:
        """The node evicts the pod: its process is killed, and the pod says why."""
        (self.cluster.folder / f"evict-{job.name}").touch()

    def unreachable(self) -> AbstractAsyncContextManager[None]:
        return self.gate.shut()

    async def remains(self, job: Job) -> bool:
        from kubernetes_asyncio import client, config
        from kubernetes_asyncio.client.exceptions import ApiException

        found = client.Configuration()
        await config.load_kube_config(self.kubeconfig, client_configuration=found)
        async with client.ApiClient(found) as api:
            try:
                await client.BatchV1Api(api).read_namespaced_job(job.name, "default")
            except ApiException as e:
                if e.status == 404:
                    return self.store != "" and any(
                        name == job.name for _, names, _ in os.walk(self.store) for name in names
                    )
                raise
        return True
