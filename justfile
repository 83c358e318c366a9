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
    uv run pytest tests/core tests/flows tests/wire tests/engine tests/sdk tests/app tests/project -q

fmt:
    uv run ruff format src tests examples
    uv run ruff check --fix src tests examples

# Generated messages, with the compiler of the oldest protobuf that is supported.
generate *out:
    uv run --frozen --isolated --only-group generate python proto/generate.py {{out}}

# Tests on the oldest protobuf and grpcio that are declared, in an environment of their own. The whole suite, unless files are named.
protobuf6 *args:
    UV_PROJECT_ENVIRONMENT=.venv-protobuf6 uv run --frozen --all-extras --no-group protobuf7 --group protobuf6 pytest {{args}}

bench *args:
    uv run perdure bench {{args}}

# Plants one bug at a time in a copy of the tree: do the tests catch it? See tests/mutation/run.py.
mutate *args:
    uv run python tests/mutation/run.py {{args}}
