# The same commands that CI calls. PYTHON chooses the interpreter: make test PYTHON=.venv/bin/python
PYTHON ?= python
BIN = $(shell $(PYTHON) -c "import sysconfig; print(sysconfig.get_path('scripts'))")

.PHONY: dev check test bench docs

dev:  ## a working checkout: virtual environment, editable build, everything the tests need
	python3 -m venv .venv
	.venv/bin/python -m pip install --editable ".[test,docs]"

check:  ## formatting, lint, types
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(BIN)/clang-format --dry-run --Werror native/*.hpp native/*.cpp tests/native/*.cpp

test:
	$(PYTHON) -m pytest

bench:
	$(PYTHON) benchmarks/attention.py
	$(PYTHON) benchmarks/observe.py

docs:  ## the documentation site, into site/
	$(PYTHON) -m sphinx -W --keep-going -q docs site
