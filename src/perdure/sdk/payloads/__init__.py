"""Typed JSON payloads: `Converter` carries the values of one annotation, `Signature` the calls of one function."""

from perdure.sdk.payloads.converters import Converter
from perdure.sdk.payloads.signatures import Signature

__all__ = ["Converter", "Signature"]
