"""What an error says about a package that is not installed.

perdure-core, which an application embeds, has few dependencies; parts of it need more. The package `perdure` brings most of these.
"""

from __future__ import annotations

from importlib.util import find_spec

from perdure.core.errors import InvalidInput


def install_command(extra: str) -> str:
    """The command that brings the packages of an extra into this environment."""
    name = "perdure" if find_spec("perdure.cli") else "perdure-core"
    return f"pip install '{name}[{extra}]'"


def missing(what: str, extra: str) -> InvalidInput:
    """`what`: the part that needs the packages, as the beginning of a sentence."""
    return InvalidInput(f"{what} needs a package that is not installed: {install_command(extra)}")
