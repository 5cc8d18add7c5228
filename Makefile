# Two commands do everything: `make demo` and `make test`. Both set up .venv on first use and reuse it afterwards.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
TORCH ?= torch
BIN := $(VENV)/bin
SOURCES := $(shell find tasks attacks defenses bench leaderboard -type f -not -name '*.pyc') README.md

.PHONY: demo test lint types check docs speed install clean

demo: install
	$(BIN)/thiefbench run smoke --store runs/smoke
	$(BIN)/thiefbench report runs/smoke

test: lint types check

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy -p thiefbench

# One process for each processor, each with one thread: two threads on a busy one wait for each other most of the time.
check: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical

# The documentation as a site, build/docs/index.html; a warning, such as a dead link, is an error.
docs: install
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

# Against a plain swarm program, in turn (about 40 minutes): make speed BASELINE=path/to/naive_swarm.py
speed: install
	$(BIN)/python tests/benchmarks/speed.py --baseline "$(BASELINE)"

install: $(VENV)/.installed

# The package is installed as a user would have it, not in place, so a file missing from the wheel fails the tests.
$(VENV)/.installed: $(VENV)/.dependencies $(SOURCES)
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --force-reinstall .
	rm -rf build
	@touch $@

$(VENV)/.dependencies: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one with make PYTHON=/path/to/python3"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet ".[dev]"
	rm -rf build
	@touch $@

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache
