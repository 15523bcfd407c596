# What a developer types; `make` alone lists it. The environment in .venv is made when it is first needed.

VENV   ?= .venv
BIN    := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# Names the requirements of a dependency group, one a line: older pips know no --group.
GROUP  := import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"][sys.argv[1]], sep="\n")

# Small tensors do not profit from threads, and the test workers would fight for the cores.
TEST   := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(or $(WORKERS),2)

.DEFAULT_GOAL := help
.PHONY: help demo doctor bench setup check fix test test-all docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.package ## Train a small network on images, watched (about a minute; ARGS="--steps 50")
	@$(BIN)/python -m cockpit.demo $(ARGS)

doctor: $(VENV)/.package ## Say what works here (ARGS="train.py:build": how a model of yours is covered)
	@$(BIN)/python -m cockpit.doctor $(ARGS)

bench: $(VENV)/.package ## Measure the cost of watching beside its peers (minutes to hours; ARGS="--quick")
	$(BIN)/python -m benchmarks $(ARGS)

setup: $(VENV)/.dev ## Make the environment, with the tools for tests and checks

check: $(VENV)/.dev ## Formatting, lint, types, import directions, spelling
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

fix: $(VENV)/.dev ## Repair what formatter and linter can repair
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: $(VENV)/.dev ## All tests but the slow ones (ARGS="-k norm_test" for some of them)
	$(TEST) -m "not slow" $(ARGS)

test-all: $(VENV)/.dev ## All tests
	$(TEST) $(ARGS)

docs: $(VENV)/.docs ## Build the pages of docs/ into site/
	$(BIN)/zensical build --clean

clean: ## Remove the environment, caches and built pages
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed. Name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.package: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the package and PyTorch into $(VENV): minutes the first time, once."
	@$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.package
	@$(BIN)/python -c '$(GROUP)' dev > $(VENV)/dev.txt
	@echo "Installing the tools for tests and checks into $(VENV)."
	@$(PIP) install --quiet --constraint constraints.txt --requirement $(VENV)/dev.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.package
	@$(BIN)/python -c '$(GROUP)' docs > $(VENV)/docs.txt
	@$(PIP) install --quiet --requirement $(VENV)/docs.txt
	@touch $@
