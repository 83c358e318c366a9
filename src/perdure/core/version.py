"""The version of this package; pyproject.toml says the same."""

from typing import Final

VERSION: Final = "0.2.0"
