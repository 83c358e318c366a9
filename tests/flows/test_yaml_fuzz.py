"""A short form of tests/fuzz/documents.py."""

from __future__ import annotations

from perdure.flows.compile import compile_flow
from perdure.flows.source import read
from tests.fuzz import documents


def test_the_documents_that_are_mutated_are_good() -> None:
    for seed in documents.SEEDS:
        assert compile_flow(read(seed), name="fuzz").flow.body.nodes


def test_mutated_documents_are_flows_or_refused_and_nothing_else() -> None:
    found = documents.run(500, seed=1)
    assert found["flow"] >= 5, "mutations that always break a document test nothing but the parser"
    assert found["refused"] >= 125
