"""Typed JSON payloads: `Converter` carries the values of one annotation, `Signature` the calls of one function."""

from perdure.sdk.converters import Converter
from perdure.sdk.signatures import Signature

__all__ = ["Converter", "Signature"]
