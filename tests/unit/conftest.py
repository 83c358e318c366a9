"""Hypothesis on a slow machine: no deadline per example, the same examples every time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("perdure", deadline=None, derandomize=True, max_examples=60, print_blob=True, database=None)
settings.load_profile("perdure")
