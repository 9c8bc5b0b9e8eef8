# Run `make help` for the targets.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DOCS_INSTALLED := .venv/docs_installed
PAGE := experiments/explorer/page
PAGE_INSTALLED := $(PAGE)/node_modules/installed
# Modules are compiled when they are first imported, since compiling all of them takes as long as the rest of
# the installation. So Python must be allowed to write them.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --dist=loadfile --no-loadscope-reorder --maxfail=5

.PHONY: help train test test-all exhaustive check check-page format docs clean

help:
	@echo "make train        train the toy translator (2 minutes on 2 cores)"
	@echo "make test         run the quick tests, before each commit (3 to 5 minutes on 2 cores, 2 to 3 when repeated)"
	@echo "make test K=name  run the tests whose name contains K"
	@echo "make test-all     run the tests of a pull request (11 to 20 minutes)"
	@echo "make exhaustive   run all tests: also browser, several processes, figures, studies, export (nightly)"
	@echo "make check        run the linter, the formatter and the type checkers"
	@echo "make format       fix and format the code"
	@echo "make docs         build the documentation in docs/_build/html"
	@echo "make clean        remove .venv, build files and caches; runs/ stays"
	@echo "Each command creates .venv and installs what it needs. Python 3.11 or later: make PYTHON=python3.12"

train: $(INSTALLED)
	$(BIN)/python -m experiments.train

# A file of tests has at most one mark of its tier, `slow` or `nightly`, and `eight_devices` if it needs several
# devices. Most of the time of tests is compilation. With QUICK_COMPILATION, programs are compiled without most
# optimizations, in a third of the time. `make test-all` compiles the contract on one device as users do, with
# the default options, and `make exhaustive` also tests/attention and tests of several devices.
test: $(INSTALLED)
ifdef K
	$(BIN)/python -m pytest -m "not nightly" -k "$(K)"
else
	QUICK_COMPILATION=1 $(PYTEST) -m "not slow and not nightly and not eight_devices"
endif

test-all: $(INSTALLED)
	QUICK_COMPILATION=1 $(PYTEST) -m "not nightly and not eight_devices" --ignore=tests/contract
	$(PYTEST) -m "not nightly and not eight_devices" tests/contract
	QUICK_COMPILATION=1 DEVICES=8 $(PYTEST) -m "eight_devices and not nightly" tests

exhaustive: test-all
	$(PYTEST) -m "nightly and not eight_devices"
	$(PYTEST) -m "not nightly and not eight_devices" tests/attention
	DEVICES=8 $(PYTEST) -m eight_devices tests

check: $(INSTALLED) check-page
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

ifeq ($(shell command -v npm 2> /dev/null),)
check-page:
	@echo "npm is not installed; skipping the checks of the TypeScript in $(PAGE)"
else
check-page: $(PAGE_INSTALLED)
	npm --prefix $(PAGE) run --silent check
endif

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Warnings are errors: broken links, unknown names, and failing code in the tutorial.
docs: $(INSTALLED) $(DOCS_INSTALLED)
	$(BIN)/python -m sphinx --builder=html --fail-on-warning --keep-going --quiet docs docs/_build/html

clean:
	rm -rf .venv .jax_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist docs/_build *.egg-info \
	  $(PAGE)/node_modules

$(INSTALLED): requirements.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed: make PYTHON=python3.11")'
	@echo "Creating .venv and installing requirements.txt; this takes about a minute."
	$(PYTHON) -m venv .venv
	$(PIP) -r requirements.txt
	touch $@

$(PAGE_INSTALLED): $(PAGE)/package.json
	npm --prefix $(PAGE) install --loglevel=error --no-audit --no-fund
	touch $@

$(DOCS_INSTALLED): docs/requirements.txt $(INSTALLED)
	$(PIP) -r docs/requirements.txt
	touch $@
