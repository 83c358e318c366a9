# `just check` is what CI runs.

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

unit:
    uv run pytest tests/unit -q

fmt:
    uv run ruff format src tests examples
    uv run ruff check --fix src tests examples

bench *args:
    uv run perdure bench {{args}}
