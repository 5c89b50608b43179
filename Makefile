# Everything a contributor does here, by name. `make` alone lists it.

PYTHON ?= python3
PORT ?= 8080
# Empty: where the server keeps its data if nobody says.
DATA_DIR ?=
VLLM_VENV ?= build/vllm
ROUNDS ?= 3
# The executable agentic-server, to be measured beside ours.
PEER ?=

BIN := .venv/bin
UV_VERSION = $(shell sed -n '/^name = "uv"$$/{n;s/version = "\(.*\)"/\1/p;}' uv.lock)
FREE_PORT = $(BIN)/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
SERVE = $(BIN)/rejoinder serve --port $(PORT) $(if $(DATA_DIR),--data-dir "$(DATA_DIR)")
COVERAGE = $(BIN)/coverage
# Most of the time a test waits for a server or a clock, so that two processes take half as long. Each has its Postgres.
SUITE = $(BIN)/pytest --numprocesses=2 --dist=loadfile --ignore=tests/e2e/vllm
NODE_PACKAGES := tests/node/node_modules

.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-unit test-system-postgres test-pgbouncer test-node lint fix cover bench e2e-vllm image clean

help: ## List the targets
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  %-22s%s\n", $$1, $$2}'

setup: .venv/.synced ## Make .venv with everything in uv.lock; every other target does it by itself

# uv comes into the environment itself, since a fresh machine may lack it; it is locked too, so the sync keeps it.
.venv/.synced: pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	UV_PROJECT_ENVIRONMENT=.venv UV_PYTHON_DOWNLOADS=never $(BIN)/uv sync --frozen --extra otel --quiet
	@touch $@

run: .venv/.synced ## Serve on 127.0.0.1:PORT before UPSTREAM=http://host:8000/v1 (without it, before a mock)
ifdef UPSTREAM
	@echo '*** Requests go to http://127.0.0.1:$(PORT)/v1 ***' >&2
	@exec $(SERVE) --upstream "$(UPSTREAM)"
else
	@echo '*** NO UPSTREAM: a MOCK answers, not a model. For a model: make run UPSTREAM=http://host:8000/v1 ***' >&2
	@echo '*** Requests go to http://127.0.0.1:$(PORT)/v1 ***' >&2
	@mock_port=$$($(FREE_PORT)); $(BIN)/rejoinder mock --port $$mock_port >/dev/null & mock=$$!; \
	$(SERVE) --upstream http://127.0.0.1:$$mock_port/v1 & serve=$$!; \
	trap 'kill $$serve' INT TERM; wait $$serve; status=$$?; wait $$serve; \
	kill $$mock 2>/dev/null; wait $$mock; exit $$status
endif

demo: .venv/.synced ## Two turns through a real server: what was stored, and what the upstream received
	$(BIN)/rejoinder demo

test: lint ## Lint, then every tier of tests but the real vLLM and the JavaScript clients
	$(SUITE)

test-unit: .venv/.synced ## The tests that need no socket and no Postgres
	$(BIN)/pytest tests/unit

test-system-postgres: .venv/.synced ## The suite on the machine's own PostgreSQL (Debian 12: 15) in place of the embedded one
	tests/with_system_postgres.sh $(SUITE) --ignore=tests/unit

test-pgbouncer: .venv/.synced ## The integration tests with each server behind a PgBouncer in transaction mode
	tests/with_system_postgres.sh tests/with_pgbouncer.sh $(BIN)/pytest tests/integration

test-node: .venv/.synced $(NODE_PACKAGES)/.package-lock.json ## JavaScript clients before a real server (needs node and npm)
	node --test --test-reporter=spec tests/node/*.test.js

# npm puts this file there last. Its warnings are off: some clients ask for Node.js 22 and run on 20 too.
$(NODE_PACKAGES)/.package-lock.json: tests/node/package.json tests/node/package-lock.json
	@for needed in node npm; do command -v $$needed >/dev/null || \
		{ echo "$$needed is not there: the JavaScript clients need Node.js 20 or newer, with npm" >&2; exit 1; }; done
	npm ci --prefix tests/node --no-audit --no-fund --loglevel=error
	@touch $@

lint: .venv/.synced ## Ruff, mypy and the layering rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: .venv/.synced ## Let ruff mend and format what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cover: export COVERAGE_FILE = build/coverage
cover: .venv/.synced ## The suite under coverage, with the lines that no test ran
	@mkdir -p build
	$(COVERAGE) run --source=server --branch -m pytest --ignore=tests/e2e/vllm
	$(COVERAGE) report --show-missing --skip-covered

bench: .venv/.synced ## Measure the server, with PEER=path/to/agentic-server that one too: tables, JSON and a plot in build/bench
	$(BIN)/python -m tests.bench --rounds $(ROUNDS) $(if $(PEER),--peer "$(PEER)")

e2e-vllm: .venv/.synced $(VLLM_VENV)/bin/vllm ## The oracle dialogues before a real vLLM (VLLM_VENV=..., else one is installed)
	VLLM_VENV="$(VLLM_VENV)" $(BIN)/pytest -s tests/e2e/vllm

# The console script is the last thing that the installation puts there.
$(VLLM_VENV)/bin/vllm:
	tests/e2e/vllm/setup.sh "$(VLLM_VENV)"

image: ## Build the container image
	docker build --file docker/Dockerfile --tag rejoinder .

clean: ## Remove what was built and cached, never the data
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache $(NODE_PACKAGES)
