# make train    trains the toy translator, in two minutes
# make test     runs all tests
# make check    runs the linter, the formatter and the type checker
# Each sets everything up by itself, in .venv.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
PYTEST := $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder

.PHONY: train test check format clean

train: $(INSTALLED)
	$(BIN)/python -m experiments.train

# The contract of attention is tested as users compile it. The other tests take a third of the time without
# the compiler's optimizations.
test: $(INSTALLED)
	$(PYTEST) tests/contract
	QUICK_COMPILATION=1 $(PYTEST) --ignore=tests/contract

check: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv build *.egg-info

$(INSTALLED): requirements.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@
