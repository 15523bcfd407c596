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

# The page that `cockpit show` serves. COCKPIT_SKIP_WEB=1 leaves all of it out, for work on the Python part alone.
PAGE   := src/cockpit/web/dist/index.html
NPM    := $(BIN)/python web/build.py
WEB    := $(if $(COCKPIT_SKIP_WEB),,yes)

.DEFAULT_GOAL := help
.PHONY: help demo show doctor bench setup check fix test test-all test-web pictures web docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.package ## Train a small network on images, watched (about a minute; ARGS="--steps 50")
	@$(MAKE) --no-print-directory web || echo "The page could not be built; the demo runs without it." >&2
	@$(BIN)/python -m cockpit.demo $(ARGS)

show: $(VENV)/.package web ## Open the page on the runs in ./cockpit_logs (ARGS="folder --port 6200")
	@$(BIN)/python -m cockpit show $(ARGS)

doctor: $(VENV)/.package ## Say what works here (ARGS="train.py:build": how a model of yours is covered)
	@$(BIN)/python -m cockpit.doctor $(ARGS)

bench: $(VENV)/.package ## Measure the cost of watching beside its peers (minutes to hours; ARGS="--quick")
	$(BIN)/python -m benchmarks $(ARGS)

setup: $(VENV)/.dev web ## Make the environment, with the page and the tools for tests and checks
	@$(if $(WEB),VENV=$(VENV) web/e2e/browser.sh > /dev/null)

check: $(VENV)/.dev web ## Formatting, lint, types, import directions, spelling
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(if $(WEB),$(NPM) run --silent check)

fix: $(VENV)/.dev ## Repair what formatter and linter can repair
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: $(VENV)/.dev web ## All tests but the slow ones (ARGS="-k norm_test" for some of those in Python)
	$(TEST) -m "not slow" $(ARGS)
	$(if $(ARGS),,$(if $(WEB),@$(MAKE) --no-print-directory test-web))

test-all: $(VENV)/.dev web ## All tests
	$(TEST) $(ARGS)
	$(if $(WEB),@$(MAKE) --no-print-directory test-web LARGE=1)

test-web: $(VENV)/.package web ## The tests of the page: its parts by themselves, then in a browser with a real training
	$(NPM) run --silent test
	@browser="$$(VENV=$(VENV) web/e2e/browser.sh)" && { test -z "$$browser" || \
	  CHROMIUM="$$browser" PYTHON="$(abspath $(BIN))/python" OMP_NUM_THREADS=1 LARGE=$(LARGE) \
	  $(NPM) exec -- vitest run --config e2e/vitest.config.ts $(ARGS); }

pictures: $(VENV)/.package web ## Draw the pictures of docs/images anew, from real runs in a browser
	@CHROMIUM="$$(VENV=$(VENV) web/e2e/browser.sh)" PYTHON="$(abspath $(BIN))/python" OMP_NUM_THREADS=1 \
	  $(NPM) exec -- vitest run --config e2e/pictures.config.ts

web: $(if $(WEB),$(PAGE)) ## Build the page

docs: $(VENV)/.docs ## Build the pages of docs/ into site/
	$(BIN)/zensical build --clean

clean: ## Remove the environment, caches and built pages
	rm -rf $(VENV) site src/cockpit/web/dist web/node_modules web/e2e/screenshots .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed. Name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.package: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the package and PyTorch into $(VENV): minutes the first time, once."
	@COCKPIT_SKIP_WEB=1 $(PIP) install --quiet --constraint constraints.txt --editable .
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

$(VENV)/.node: web/build.py | $(BIN)/python
	@needs="$$($(NPM) needs)" && { test -z "$$needs" || $(PIP) install --quiet "$$needs"; }
	@touch $@

$(PAGE): web/package-lock.json web/index.html web/vite.config.ts web/build.py $(shell find web/src -type f) | $(VENV)/.node
	@echo "Building the page."
	@$(NPM)
