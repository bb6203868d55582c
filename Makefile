# One door to the project: `make help` lists what it opens. Everything installs into .venv from hash-pinned locks.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := app solvers agents
PORT ?=
UP_ARGS ?=
TEST_ARGS ?=
LOCK_ARGS ?=

# uv is taken when it is there; plain pip does the same from the same locks.
ifneq ($(shell command -v uv 2>/dev/null),)
INSTALL := uv pip install --python $(BIN)/python --quiet
else
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-input
endif

# The pip settings of this machine must not leak into a lock: neither addresses nor hashes of locally built wheels.
COMPILE := env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE=/dev/null $(BIN)/pip-compile --quiet --no-header \
	--strip-extras --allow-unsafe --generate-hashes --annotation-style=line \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(LOCK_ARGS)

.PHONY: help venv up down test check format lint types contracts fast lock openapi bench clean system-deps

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- installation -----------------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "headroom needs Python 3.11 or newer; name one with: make PYTHON=python3.x" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.server-stamp: requirements-server.lock pyproject.toml | $(BIN)/python
	$(INSTALL) --require-hashes -r requirements-server.lock
	$(INSTALL) --no-build-isolation --no-deps --no-index -e .
	@touch $@

$(VENV)/.dev-stamp: requirements-dev.lock pyproject.toml | $(BIN)/python
	$(INSTALL) --require-hashes -r requirements-dev.lock
	$(INSTALL) --no-build-isolation --no-deps --no-index -e .
	@$(BIN)/python -m pip --disable-pip-version-check check
	@touch $(VENV)/.server-stamp $@

venv: $(VENV)/.dev-stamp ## Install everything a developer needs into .venv

lock: $(VENV)/.dev-stamp ## Write the locks anew from pyproject.toml (LOCK_ARGS=--upgrade moves the pins)
	$(COMPILE) --extra server --extra build --extra dev -o requirements-dev.lock pyproject.toml
	$(COMPILE) --extra server --extra build -c requirements-dev.lock -o requirements-server.lock pyproject.toml
	$(COMPILE) -c requirements-server.lock -o requirements.lock pyproject.toml
	@sed -i -e 's/ -c requirements-[a-z]*\.lock,//' requirements.lock requirements-server.lock
