"""The flows among the runs that steady.py starts. Their tasks are those of flows.py."""

from __future__ import annotations

from typing import Any

DAG: dict[str, Any] = {
    "flow": "steady-dag",
    "tasks": {
        "first": {"python": "step", "with": {"after": []}},
        "leaves": {
            "depends_on": ["first"],
            "foreach": "${ range(3) }",
            "python": "leaf",
            "with": {"number": "${ item }"},
        },
        "rest": {"depends_on": ["leaves"], "sleep": "200ms"},
        "last": {"depends_on": ["rest"], "python": "step", "with": {"after": ["${ first }"]}},
    },
    "output": "${ last }",
}
GRAPH: dict[str, Any] = {
    "flow": "steady-graph",
    "state": {"rounds": 0},
    "max_steps": 50,
    "graph": {
        "start": "work",
        "nodes": {
            "work": {
                "python": "step",
                "with": {"after": []},
                "set": {"rounds": "${ state.rounds + 1 }"},
            },
            "enough": {"choice": [{"when": "state.rounds >= 3", "then": "done"}, {"else": "rest"}]},
            "rest": {"sleep": "100ms"},
            "done": {"value": "done"},
        },
        "edges": [{"from": "work", "to": "enough"}, {"from": "rest", "to": "work"}],
    },
    "output": {"rounds": "${ state.rounds }"},
}
