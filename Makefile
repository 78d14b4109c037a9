# The one door: make demo | test | lint | bench | docs | test-gateways
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= test
comma := ,
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
PYTEST_ARGS ?= -q -n auto --dist worksteal
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo $$p && break; done)

.PHONY: demo test lint format bench docs test-gateways install clean
.DEFAULT_GOAL := demo

demo: $(STAMP)
	$(BIN)/tfanalyze demo

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check tfanalyze tests benchmarks
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format tfanalyze tests benchmarks

bench: $(STAMP)
	@for run in benchmarks/*/run.py; do echo "== $$run --quick"; $(BIN)/python $$run --quick || exit 1; done

docs: $(STAMP)
	$(BIN)/python -m pytest -q tests/test_docs.py tests/test_schemas.py tests/test_config.py

test-gateways: $(STAMP)
	$(BIN)/python -m tests.gateways.install
	$(BIN)/python -m pytest -q -m gateway tests/gateways

install: $(STAMP)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "tfanalyze needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	|| { echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: apt-get install python3-venv)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
