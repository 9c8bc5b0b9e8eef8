# make train       trains the toy translator, in about two minutes
# make test        runs the tests
# make exhaustive  runs them with all combinations of scores, engines and derivatives
# make quick       runs a part of the tests in a minute
# make check       runs the linter, the formatter and the type checker
# make docs        builds the documentation in docs/_build/html
# Each sets everything up by itself, in .venv.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
DOCS_INSTALLED := .venv/docs_installed
PYTEST := $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder

.PHONY: train test exhaustive quick check format docs clean

train: $(INSTALLED)
	$(BIN)/python -m experiments.train

# The contract of attention is tested as users compile it, the other tests without the compiler's optimizations,
# which takes a third. Compilation is nearly all the time: of tests that run over scores, engines, masks or
# derivatives, `make test` runs one combination in four.
test: ONE_IN := 4
exhaustive: ONE_IN := 1
test exhaustive: $(INSTALLED)
	$(PYTEST) --one-in=$(ONE_IN) tests/contract
	QUICK_COMPILATION=1 $(PYTEST) --one-in=$(ONE_IN) --ignore=tests/contract

# What says most in little time: what each score gives in both engines, empty rows, search, text, settings.
QUICK := tests/test_imports.py tests/contract/test_contract_values.py tests/contract/test_contract_empty_rows.py \
  tests/attention/test_projections.py tests/attention/test_positions.py tests/attention/search/test_search.py \
  $(addprefix tests/experiments/,commands/test_fields.py text/test_languages.py text/test_pairs.py \
  text/test_tokenizers.py text/test_vocabularies.py tasks/test_parallel_text.py translation/test_metrics.py \
  translation/test_settings.py translation/test_report.py translation/test_sweep.py runs/test_locks.py \
  runs/test_progress.py runs/test_jobs.py) experiments/text experiments/commands/fields.py

quick: $(INSTALLED)
	QUICK_COMPILATION=1 $(PYTEST) $(QUICK)

check: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# A warning is an error: a link that leads nowhere, a name that is not there, a program of the tutorial that fails.
docs: $(INSTALLED) $(DOCS_INSTALLED)
	$(BIN)/python -m sphinx --builder=html --fail-on-warning --keep-going --quiet docs docs/_build/html

clean:
	rm -rf .venv .jax_cache build docs/_build *.egg-info

$(INSTALLED): requirements.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(DOCS_INSTALLED): docs/requirements.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	touch $@
