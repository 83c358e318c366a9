# One image for servers, workers and the command line. `just image` builds the wheels that it installs.
#
#   docker build -t perdure .
#   docker run --read-only --tmpfs /tmp -e PERDURE_DSN=postgresql://… -p 8600:8600 perdure server --http 0.0.0.0:8600
#
# BASE is any image with Python 3.11 or newer, as `python`, with venv and pip.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
# The locked dependencies with their hashes, then Perdure itself, which adds none.
COPY dist/requirements.txt dist/*.whl /build/
RUN python -m venv /opt/perdure \
    && /opt/perdure/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /build/requirements.txt \
    && /opt/perdure/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-index /build/*.whl \
    && /opt/perdure/bin/pip uninstall --quiet --yes pip

FROM ${BASE}
LABEL org.opencontainers.image.title="Perdure" \
      org.opencontainers.image.description="Durable workflows in plain Python on PostgreSQL" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/perdure /opt/perdure
# Nothing is written: modules are compiled in the first stage, and the root file system may be read-only.
ENV PATH=/opt/perdure/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PERDURE_LOG_FORMAT=json
# Code of workers is mounted, or copied by an image that begins FROM this one.
WORKDIR /app
USER 10001:10001
EXPOSE 8600 8601
# Of a server; a worker has no port. Kubernetes probes /livez and /readyz itself.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["python", "-m", "perdure.programs.probe"]
ENTRYPOINT ["perdure"]
CMD ["--help"]
