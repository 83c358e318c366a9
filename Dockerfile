# One image for servers, workers and the command line. `just image` builds the wheels that it installs, then the image.
#
#   just image
#   docker run --read-only --tmpfs /tmp -e PERDURE_DSN=postgresql://… -p 8600:8600 perdure server --http 0.0.0.0:8600 --no-migrate
#
# BASE is any image of Debian's family with Python 3.11 or newer, as `python`, with venv and pip.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
# Wheels carry symbols that only a debugger reads: 20 MB of them.
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends binutils >/dev/null \
    && rm -rf /var/lib/apt/lists/*
# The locked dependencies with their hashes, then Perdure itself, which adds none.
COPY dist/image /build/
RUN python -m venv /opt/perdure \
    && /opt/perdure/bin/pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check --require-hashes -r /build/requirements.txt \
    && /opt/perdure/bin/pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check --no-deps --no-index /build/*.whl \
    && /opt/perdure/bin/pip uninstall --quiet --yes pip \
    && find /opt/perdure -name '*.so' -exec strip --strip-unneeded {} + \
# Modules are compiled here, because nothing is written later: all of Perdure, and of its dependencies what a server and a worker import.
    && find /opt/perdure -name __pycache__ -exec rm -rf {} + \
    && /opt/perdure/bin/python -m compileall -q /opt/perdure/lib/python3*/site-packages/perdure \
    && /opt/perdure/bin/python -c 'import perdure.cli.main, perdure.programs.server_process, perdure.programs.worker_process, aiosmtplib, obstore.store, rich.table, opentelemetry.exporter.otlp.proto.grpc.trace_exporter, opentelemetry.sdk.trace.export'

FROM ${BASE}
LABEL org.opencontainers.image.title="Perdure" \
      org.opencontainers.image.description="Durable workflows in plain Python on PostgreSQL" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/perdure /opt/perdure
ENV PATH=/opt/perdure/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PERDURE_LOG_FORMAT=json
# Code of workers is mounted, or copied by an image that begins FROM this one.
WORKDIR /app
USER 10001:10001
EXPOSE 8600 8601
# Of a server; a worker has no port. Kubernetes probes /livez and /readyz itself.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["python", "-m", "perdure.programs.probe"]
ENTRYPOINT ["perdure"]
CMD ["--help"]
