"""A flow to be deployed: a file, the text of one, or a document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from perdure.core.api.definitions import FlowText
from perdure.core.errors import InvalidInput

SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
FILE_BYTES_MAX: Final = 1024 * 1024
"""A larger file is not read as a flow."""


def flow_text(flow: str | Path | Mapping[str, Any], name: str | None = None) -> FlowText:
    if isinstance(flow, Mapping):
        return FlowText(document=dict(flow), name=name)
    if isinstance(flow, Path) or ("\n" not in flow and is_file_name(flow)):
        path = Path(flow)
        return FlowText(source=text_of(path), name=name or stem(path), file=str(path))
    return FlowText(source=flow, name=name)


def text_of(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise InvalidInput(
                f"{path} has over FILE_BYTES_MAX={FILE_BYTES_MAX:,} bytes; split it, or embed less in it"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from None


def stem(path: Path) -> str:
    return path.name.removesuffix(path.suffix)


def is_file_name(text: str) -> bool:
    """Whether an argument looks like a file rather than the name of a workflow."""
    return Path(text).suffix in SUFFIXES
