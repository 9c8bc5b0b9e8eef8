# make train    trains the toy translator, in two minutes
# make test     runs all tests
# make check    runs the linter, the formatter and the type checker
# Each sets everything up by itself, in .venv.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: train test check format clean

train: $(INSTALLED)
	$(BIN)/python -m experiments.train

test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder

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
