"""How tests load the pytest plugin in processes of their own."""

from __future__ import annotations

from importlib.metadata import entry_points

PLUGIN = "perdure.testing.pytest_plugin"


def plugin_options() -> list[str]:
    """Options of pytest: none where the installed package names the plugin."""
    return [] if any(e.value == PLUGIN for e in entry_points(group="pytest11")) else ["-p", PLUGIN]
