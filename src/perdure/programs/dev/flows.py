"""The flows of `perdure dev`: files of the directory, deployed at the start and whenever one is saved.

A file with mistakes is reported like a compiler error, and the version deployed before stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perdure.core.errors import PerdureError
from perdure.programs.dev.console import Say
from perdure.programs.flow_files import FLOWS, holds_flow, load, of_project
from perdure.programs.http_client import HttpApi
from perdure.sdk.client.flow_text import SUFFIXES


class DevFlows:
    def __init__(self, directory: Path, url: str, token: str, say: Say) -> None:
        self._directory, self._url, self._token, self._say = directory, url, token, say
        self._deployed: dict[Path, str] = {}
        """File -> the name of its flow."""

    @property
    def names(self) -> list[str]:
        return sorted(set(self._deployed.values()))

    def matters(self, path: Path) -> bool:
        """Whether a file is where flows are looked for."""
        return path.suffix in SUFFIXES and path.parent in (self._directory, self._directory / FLOWS)

    async def deploy_all(self) -> None:
        await self.deploy(of_project(self._directory))

    async def deploy(self, paths: Iterable[Path]) -> None:
        """Files that are no flows are skipped."""
        for path in sorted(paths):
            if not path.exists():
                name = self._deployed.pop(path, "")
                if name:
                    self._say.note(f"{self._shown(path)} is gone; {name} stays as it was deployed")
            elif holds_flow(path):
                await self._deploy(path)

    async def _deploy(self, path: Path) -> None:
        shown = self._shown(path)
        try:
            file = load(path, shown=shown)
            for problem in file.problems:
                self._say.trouble(str(problem))
            if file.compiled is None:
                before = self._deployed.get(path)
                self._say.note(f"{shown} was not deployed{f'; {before} stays as it was' if before else ''}")
                return
            body = {"source": file.text, "name": file.name, "file": shown}
            answer = await asyncio.to_thread(self._post, body)
        except PerdureError as error:
            self._say.trouble(f"{shown}: {error}")
            return
        self._deployed[path] = answer["name"]
        if answer["deployed"]["activated"] or answer["deployed"]["created"]:
            self._say.step("flow", f"{answer['name']} of {shown}, {answer['deployed']['version']}")
        else:
            self._say.step("flow", f"{answer['name']} of {shown}, unchanged")

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        with HttpApi(self._url, key=self._token) as api:
            answer: dict[str, Any] = api.post("/workflows/deploy", body)
            return answer

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._directory)) if path.is_relative_to(self._directory) else str(path)
