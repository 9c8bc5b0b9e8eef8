# Run `make help` for the targets.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DOCS_INSTALLED := .venv/docs_installed
PAGE := experiments/explorer/page
PAGE_INSTALLED := $(PAGE)/node_modules/installed
PYTEST := $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder

.PHONY: help train test exhaustive quick check check-page format docs clean

help:
	@echo "make train        train the toy translator (2 minutes on 2 cores)"
	@echo "make test         run the tests (10 minutes on 2 cores, 6 when repeated)"
	@echo "make test K=name  run the tests whose name contains K"
	@echo "make quick        run the fastest tests (1 minute)"
	@echo "make exhaustive   run all tests, with all combinations of scores, engines and masks (25 minutes)"
	@echo "make check        run the linter, the formatter and the type checkers"
	@echo "make format       fix and format the code"
	@echo "make docs         build the documentation in docs/_build/html"
	@echo "make clean        remove .venv, build files and caches; runs/ stays"
	@echo "Each command creates .venv and installs what it needs. Python 3.11 or later: make PYTHON=python3.12"

train: $(INSTALLED)
	$(BIN)/python -m experiments.train

# Most of the time of the tests is compilation. tests/contract checks numbers as users get them, so it uses the
# default options of the compiler. The other tests are compiled without most optimizations, in a third of the
# time. `make test` omits the tests marked `exhaustive`, mostly more combinations of scores, engines, masks and
# derivatives.
test: SELECTED := -m "not exhaustive"
exhaustive: SELECTED :=
test exhaustive: $(INSTALLED)
ifdef K
	$(BIN)/python -m pytest $(SELECTED) -k "$(K)"
else
	$(PYTEST) $(SELECTED) tests/contract
	QUICK_COMPILATION=1 $(PYTEST) $(SELECTED) --ignore=tests/contract
endif

# Values of each score in both engines, empty rows, decoding, text and configs.
QUICK := tests/test_imports.py tests/contract/test_contract_values.py tests/contract/test_contract_empty_rows.py \
  tests/attention/test_linear.py tests/attention/test_positions.py tests/attention/decoding/test_search.py \
  $(addprefix tests/experiments/,cli/test_config_fields.py $(addprefix data/test_,text_processor.py \
  parallel_corpus.py tokenizers.py vocabularies.py parallel_text.py) evaluation/test_metrics.py \
  evaluation/test_reporting.py $(addprefix comparison/test_,sweep.py job_runner.py) training/test_progress.py \
  $(addprefix runs/test_,validation.py workdir.py record.py)) experiments/data experiments/cli/config_fields.py

quick: $(INSTALLED)
	QUICK_COMPILATION=1 $(PYTEST) -m "not exhaustive" $(QUICK)

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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(PAGE_INSTALLED): $(PAGE)/package.json
	npm --prefix $(PAGE) install --loglevel=error --no-audit --no-fund
	touch $@

$(DOCS_INSTALLED): docs/requirements.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	touch $@
