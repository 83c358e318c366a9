# `just check` is what CI runs.

export UV_FROZEN := "1"

default: check

check: lint types contracts test

lint:
    uv run ruff check src tests examples
    uv run ruff format --check src tests examples

types:
    uv run mypy
    uv run pyright src

contracts:
    uv run lint-imports

test *args:
    uv run pytest {{args}}

# As CI does: a failed test runs once more by itself, and is listed as flaky if it passes then.
rerun *args:
    uv run python tests/rerun.py {{args}}

unit:
    uv run pytest tests/unit -q

fmt:
    uv run ruff format src tests examples
    uv run ruff check --fix src tests examples

bench *args:
    uv run perdure bench {{args}}
