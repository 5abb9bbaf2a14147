# Needs make and Python 3.11 or newer with venv. Everything is installed into .venv; nothing else is touched.
#
#   make search ARGS=--quick            options for `tuner search`
#   make search WORKLOAD=open-prose     another workload
#   make test PYTEST_ARGS='-x -k store' options for pytest
#   make setup PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'   options for pip install

WORKLOAD ?= code-gen
ARGS ?=
PYTEST_ARGS ?=
PIP_ARGS ?=

IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
    $$name -c '$(IS_NEW_ENOUGH)' 2>/dev/null && echo $$name && break; done)

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

# A stamp is newer than what it was installed from: a second run installs nothing.
CREATED := $(VENV)/.stamp-created
RUNTIME := $(VENV)/.stamp-runtime
DEVELOPMENT := $(VENV)/.stamp-development

.PHONY: help search test unit lint format bench setup clean
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

search: $(RUNTIME) ## set everything up and find the best speculation for WORKLOAD (code-gen); ARGS=--quick for a sample
	$(BIN)/tuner search --workload $(WORKLOAD) $(ARGS)

test: lint ## set everything up and run every check: ruff, mypy, lint-imports, then the whole test suite
	$(BIN)/python -m pytest $(PYTEST_ARGS)

unit: $(DEVELOPMENT) ## run the unit tests only: a minute or two, no model, no Ray, no PostgreSQL
	$(BIN)/python -m pytest tests/unit -n auto -m 'not slow and not model' $(PYTEST_ARGS)

lint: $(DEVELOPMENT) ## run ruff, mypy --strict and lint-imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEVELOPMENT) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEVELOPMENT) ## run every benchmark once; ARGS=--quick for a sample
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file --json $(ARGS); done

setup: $(DEVELOPMENT) ## only install, with the development tools

clean: ## remove .venv, caches and build output; studies and models stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED): constraints.txt
ifeq ($(PYTHON),)
	@echo 'error: no Python 3.11 or newer found on PATH' >&2
	@echo 'install one (Debian, Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3.11 ...' >&2
	@exit 1
endif
	@$(PYTHON) -c '$(IS_NEW_ENOUGH)' || { \
	    echo "error: $(PYTHON) is $$($(PYTHON) --version 2>&1); Python 3.11 or newer is needed" >&2; \
	    echo 'name a newer one: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo 'error: $(PYTHON) has no venv module' >&2; \
	    echo 'install it (Debian, Ubuntu: apt install python3-venv)' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --quiet --upgrade pip
	@touch $@

$(RUNTIME): $(CREATED) pyproject.toml constraints.txt
	$(PIP_INSTALL) -e '.[cpu]'
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	$(PIP_INSTALL) --group dev
	@touch $@
