# One door to the project: `make help` lists what it opens. Everything installs into .venv from hash-pinned locks.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH_ARGS ?=
SAME_ARGS ?=
UP_ARGS ?=
TEST_ARGS ?=
CLAIMS_ARGS ?=
MUTANTS_ARGS ?=
LOCK_ARGS ?=

# Environments of containers often forbid it; then every process compiles every source and test that it loads.
unexport PYTHONDONTWRITEBYTECODE

# uv is taken when it is there; plain pip does the same from the same locks. Locks are whole, so nothing is resolved (--no-deps): a pip
# that resolves looks for the newest of a package that another wants with an extra, and refuses it, though its version is pinned.
ifneq ($(shell command -v uv 2>/dev/null),)
INSTALL := uv pip install --python $(BIN)/python --quiet
else
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-input --only-binary :all:
endif

# The pip settings of this machine must not leak into a lock: neither addresses nor hashes of locally built wheels.
COMPILE := env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE=/dev/null $(BIN)/pip-compile --quiet --no-header \
	--strip-extras --allow-unsafe --generate-hashes --annotation-style=line \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(LOCK_ARGS)

.PHONY: help venv up down test coverage check format lint types contracts fast same claims chaos kills mutants fuzz contract audit sbom vendor lock openapi examples docs pictures scenarios library bench test-rl test-gpu clean system-deps

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- installation -----------------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "headroom needs Python 3.11 or newer; name one with: make PYTHON=python3.x" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "headroom needs a C compiler; on Debian: apt-get install gcc libc6-dev" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.server-stamp: requirements-server.lock pyproject.toml lab/pyproject.toml hatch_build.py | $(BIN)/python
	$(INSTALL) --no-deps --require-hashes -r requirements-server.lock
	$(INSTALL) --no-build-isolation --no-deps --no-index -e . -e ./lab
	@$(BIN)/python -m pip --disable-pip-version-check check >/dev/null || $(BIN)/python -m pip --disable-pip-version-check check
	@touch $@

$(VENV)/.dev-stamp: requirements-dev.lock pyproject.toml lab/pyproject.toml hatch_build.py | $(BIN)/python
	$(INSTALL) --no-deps --require-hashes -r requirements-dev.lock
	$(INSTALL) --no-build-isolation --no-deps --no-index -e . -e ./lab
	@$(BIN)/python -m pip --disable-pip-version-check check
	@touch $(VENV)/.server-stamp $@

venv: $(VENV)/.dev-stamp ## Install everything a developer needs into .venv

lock: $(VENV)/.dev-stamp ## Write the locks anew from pyproject.toml (LOCK_ARGS=--upgrade moves the pins)
	$(COMPILE) --extra server --extra convex --extra build --extra dev -o requirements-dev.lock pyproject.toml
	$(COMPILE) --extra server --extra build -c requirements-dev.lock -o requirements-server.lock pyproject.toml
	$(COMPILE) -c requirements-server.lock -o requirements.lock pyproject.toml
	$(COMPILE) --extra server --extra build --extra rl -c requirements-dev.lock -o requirements-rl.lock pyproject.toml
	@sed -i -e '/^# The following packages/d' -e '/^# WARNING: pip install/d' -e '/^# Consider using a hashable/d' -e '/^headroom-gpu @ /d' -e 's/ -c requirements-[a-z]*\.lock,//' requirements.lock requirements-server.lock requirements-dev.lock requirements-rl.lock

system-deps:
	@if [ -z "$$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || ! PATH="$$PATH:/usr/sbin" command -v haproxy >/dev/null \
		|| ! PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null || ! command -v cc >/dev/null || ! command -v chromium >/dev/null || ! command -v promtool >/dev/null || ! $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing PostgreSQL's server binaries, haproxy, pgbouncer, gcc, chromium, prometheus and python3-venv for the tests"; \
			mkdir -p /etc/postgresql-common/createcluster.d; \
			echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.d/headroom.conf; \
			export DEBIAN_FRONTEND=noninteractive; \
			apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql haproxy pgbouncer gcc libc6-dev chromium prometheus python3-venv >/dev/null; \
			! command -v systemctl >/dev/null || systemctl disable --now prometheus prometheus-node-exporter 2>/dev/null || true; \
		else \
			echo "PostgreSQL's server binaries, haproxy, pgbouncer, gcc, chromium, prometheus or python3-venv are missing and cannot be installed here: tests that need them will fail" >&2; \
		fi; \
	fi

# --- running ----------------------------------------------------------------------------------------------------------

up: $(VENV)/.server-stamp ## Start database, API, planner, a simulated fleet and its traffic (UP_ARGS=...)
	@$(BIN)/headroom up $(UP_ARGS)

down: ## Stop what `make up` started; the data stays
	@if [ -x $(BIN)/headroom ]; then $(BIN)/headroom down; else echo "nothing is installed, so nothing runs"; fi

# --- proving ----------------------------------------------------------------------------------------------------------

test: system-deps $(VENV)/.dev-stamp ## Run every test that needs no GPU (TEST_ARGS=...)
	@# Six at a time, for many wait for other processes, each file in one process and the little ones of tests/unit last.
	@# Up to three that fail run once more, with the machine to themselves, and are named at the end as what is to be mended.
	$(BIN)/pytest --workers=6 --again=3 --durations-kept=.test-durations -m "not gpu and not rl and not claims" $(COVER) $(TEST_ARGS)

coverage: COVER = --cov --cov-report=term
coverage: test ## As `test`, and tell which lines and branches ran: twice the processor time

check: $(VENV)/.dev-stamp ## Format, lint, types, import contracts and the fast tests: run it before every commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q --workers 2 -m "not slow and not integration and not gpu and not rl and not claims"

format: $(VENV)/.dev-stamp ## Rewrite the sources in the house format
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

lint: $(VENV)/.dev-stamp ## Look for what ruff forbids
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev-stamp ## mypy --strict on all packages and on what `make same` runs
	$(BIN)/mypy

contracts: $(VENV)/.dev-stamp ## Import contracts between the rooms
	$(BIN)/lint-imports

fast: $(VENV)/.dev-stamp ## Only the tests without processes and databases
	$(BIN)/pytest -q --workers 2 -m "not slow and not integration and not gpu and not rl and not claims" $(TEST_ARGS)

same: $(VENV)/.dev-stamp ## Compare plans, scenarios, views and doors with what was frozen (SAME_ARGS="--all", "--only plans", "--write")
	@$(BIN)/python -m benchmarks.same $(SAME_ARGS)

claims: $(VENV)/.dev-stamp ## Judge every claim of the papers with full effort, for hours (CLAIMS_ARGS="-k AC-HET")
	$(BIN)/pytest -q -m claims tests/claims tests/integration/demo/test_demo.py $(CLAIMS_ARGS)

chaos: $(VENV)/.dev-stamp ## Seeded histories of store, API and agents under faults (SEEDS=0-999, CHAOS_ARGS=--mutants)
	@$(BIN)/python -m tests.chaos --seeds $(or $(SEEDS),0-99) $(CHAOS_ARGS)

kills: $(VENV)/.dev-stamp ## Kill and freeze real processes at random moments under writers (KILLS=1000 KILLS_ARGS="--seed 7")
	@$(BIN)/python -m tests.kills --kills $(or $(KILLS),100) $(KILLS_ARGS)

mutants: $(VENV)/.dev-stamp ## Seed faults in the five policies and our planner, and tell who notices (MUTANTS_ARGS="--only inss")
	@$(BIN)/python -m benchmarks.mutants $(MUTANTS_ARGS)

fuzz: $(VENV)/.dev-stamp ## Feed every reader of what others write with what nobody should write (FUZZ_ARGS="--inputs 100000")
	@$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

contract: $(VENV)/.dev-stamp ## Hold the API to its description: schemathesis, all phases, every role (CONTRACT_ARGS="--roles admin")
	@$(BIN)/python -m tests.contract $(CONTRACT_ARGS)

audit: $(VENV)/.dev-stamp ## Security rules over the product, and what the locks bring along, without asking anybody
	$(BIN)/ruff check --select S app solvers agents
	@$(BIN)/python -m benchmarks.supply audit

sbom: $(VENV)/.dev-stamp ## Write what a server's installation consists of as CycloneDX (SBOM=FILE)
	@$(BIN)/python -m benchmarks.supply sbom --out $(or $(SBOM),sbom.json)

vendor: $(VENV)/.dev-stamp ## Fetch others' scripts and styles at the versions of benchmarks/supply/vendored.json (needs npm)
	@$(BIN)/python -m benchmarks.supply vendor

openapi: $(VENV)/.dev-stamp ## Write the API's specification and the domain's schemas into openapi/
	$(BIN)/python -m benchmarks.same.described openapi

examples: $(VENV)/.dev-stamp ## Record the examples of the API's description anew, from the calls that a test makes
	$(BIN)/pytest -q tests/integration/api/test_examples.py --examples benchmarks/same/examples.json
	$(BIN)/python -m benchmarks.same.described openapi

docs: $(VENV)/.dev-stamp ## Build the documentation as a site into site/; a link, anchor or page that leads nowhere ends it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

pictures: $(VENV)/.dev-stamp ## Take the documentation's pictures anew of what `make up` runs; best when it has run for an hour
	$(BIN)/pytest -q tests/integration/console/test_in_browser.py -k pictures --pictures docs/pictures --pictures-of $(or $(HEADROOM_HOME),.headroom)

scenarios: $(VENV)/.dev-stamp ## Write the JSON Schema of scenario files
	$(BIN)/python -m lab.arena.loading examples/scenarios

library: $(VENV)/.dev-stamp ## Write the built-in library anew from the public measurements in HEADROOM_DATA
	$(BIN)/python -m benchmarks.build_library
	$(BIN)/python -m benchmarks.build_llm_library

$(VENV)-rl/.stamp: requirements-dev.lock requirements-rl.lock pyproject.toml lab/pyproject.toml hatch_build.py
	$(MAKE) VENV=$(VENV)-rl $(VENV)-rl/.dev-stamp
	$(VENV)-rl/bin/python -m pip --disable-pip-version-check install --quiet --no-input --only-binary :all: --no-deps --require-hashes -r requirements-rl.lock
	@touch $@

test-rl: $(VENV)-rl/.stamp ## Test what needs torch, in an environment of its own (several GB)
	$(VENV)-rl/bin/python -m pytest -m rl tests/rl $(TEST_ARGS)

test-gpu: $(VENV)/.dev-stamp ## Measure a real GPU in under 8 minutes (GPU_ARGS="--python /path/with/torch --out DIR")
	$(BIN)/python -m tests.gpu $(GPU_ARGS)

bench: $(VENV)/.dev-stamp ## Measure what the project promises
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean: ## Remove the environment and every cache; the control plane's data stays
	rm -rf $(VENV) $(VENV)-rl .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
