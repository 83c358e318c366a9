"""For users' tests: a time-skipping environment and a replayer for recorded histories.

The names here are for annotations. They load on first use, because pytest imports the plugin in this package in every session.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.lives import DrivenRun as DrivenRun
    from perdure.testing.mocks import Mock as Mock
    from perdure.testing.sync_env import SyncTestEnv as SyncTestEnv

_MODULES = {
    "DrivenRun": "perdure.testing.lives",
    "Mock": "perdure.testing.mocks",
    "SyncTestEnv": "perdure.testing.sync_env",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
