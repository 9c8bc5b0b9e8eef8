# make train       trains the toy translator, in about two minutes
# make test        runs the tests, in ten minutes on two cores; in six when run again
# make exhaustive  runs them with all combinations of scores, engines, masks and derivatives
# make quick       runs the tests of text, settings and files, and the most important numbers, in a minute
# make check       runs the linter, the formatter and the type checker
# make check-page  runs those of the page's JavaScript, as make check also does where npm is installed
# make docs        builds the documentation in docs/_build/html
# Each sets everything up by itself, in .venv.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DOCS_INSTALLED := .venv/docs_installed
PAGE := experiments/explorer/page
PAGE_INSTALLED := $(PAGE)/node_modules/installed
PYTEST := $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder

.PHONY: train test exhaustive quick check check-page format docs clean

train: $(INSTALLED)
	$(BIN)/python -m experiments.train

# Nearly all the time of the tests is compilation. tests/contract is compiled with the default options of the
# compiler, because its subject is numbers as users get them. The other tests are compiled without most
# optimizations, which takes a third of the time. `make test` leaves out the tests marked `exhaustive`: mostly
# further combinations of scores, engines, masks and derivatives.
test: SELECTED := -m "not exhaustive"
exhaustive: SELECTED :=
test exhaustive: $(INSTALLED)
	$(PYTEST) $(SELECTED) tests/contract
	QUICK_COMPILATION=1 $(PYTEST) $(SELECTED) --ignore=tests/contract

# The values of each score in both engines, empty rows, search, text and settings.
QUICK := tests/test_imports.py tests/contract/test_contract_values.py tests/contract/test_contract_empty_rows.py \
  tests/attention/test_linear.py tests/attention/test_positions.py tests/attention/decoding/test_search.py \
  $(addprefix tests/experiments/,cli/test_config_fields.py text/test_text_processor.py text/test_parallel_corpus.py \
  text/test_tokenizers.py text/test_vocabularies.py tasks/test_parallel_text.py translation/test_metrics.py \
  translation/test_validation.py translation/test_reporting.py translation/test_sweep.py runs/test_workdir.py \
  runs/test_progress.py runs/test_job_runner.py) experiments/text experiments/cli/config_fields.py

quick: $(INSTALLED)
	QUICK_COMPILATION=1 $(PYTEST) -m "not exhaustive" $(QUICK)

check: $(INSTALLED) check-page
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

ifeq ($(shell command -v npm 2> /dev/null),)
check-page:
	@echo "npm is not installed: the JavaScript in $(PAGE) is not checked"
else
check-page: $(PAGE_INSTALLED)
	npm --prefix $(PAGE) run --silent check
endif

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# A warning is an error: a link that leads nowhere, a name that is not there, a program of the tutorial that fails.
docs: $(INSTALLED) $(DOCS_INSTALLED)
	$(BIN)/python -m sphinx --builder=html --fail-on-warning --keep-going --quiet docs docs/_build/html

clean:
	rm -rf .venv .jax_cache build docs/_build *.egg-info $(PAGE)/node_modules

$(INSTALLED): requirements.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(PAGE_INSTALLED): $(PAGE)/package.json
	npm --prefix $(PAGE) install --loglevel=error --no-audit --no-fund
	touch $@

$(DOCS_INSTALLED): docs/requirements.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	touch $@
