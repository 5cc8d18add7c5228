# `make demo` and `make test` set up .venv on first use, from the tested set of versions, and reuse it afterwards.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
TORCH ?=
BIN := $(VENV)/bin
SOURCES := $(shell find tasks attacks defenses bench leaderboard -type f -not -name '*.pyc') README.md
# One process for each processor, each with one thread: two threads on a busy one wait for each other most of the time.
# Bytecode of the tests is written, whatever the environment says: else every process compiles all of them at each start.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical

.PHONY: demo test test-slow test-oldest test-newest lint types check docs speed lock install clean

demo: install
	$(BIN)/thiefbench run smoke --store runs/smoke
	$(BIN)/thiefbench report runs/smoke

# The type checker works on one processor, beside the tests: alone it would leave the others idle.
test: lint
	@$(MAKE) --no-print-directory -j 2 types check

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy -p thiefbench

check: install
	$(PYTEST)

# What guards rare machinery at length: random kills, Ray, torchrun, other Pythons, the browser, the documentation.
test-slow: install
	$(PYTEST) -m slow

# Exactly the lower bounds of pyproject.toml, and the newest versions that its ranges admit; each in an environment of its own.
test-oldest: install
	sh requirements/other.sh $(BIN)/uv 3.11 .venv-oldest lowest-direct
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -n logical tests/attacks tests/bench tests/contract tests/defenses tests/tasks

test-newest: install
	sh requirements/other.sh $(BIN)/uv "$(PYTHON)" .venv-newest highest
	$(MAKE) lint types check test-slow VENV=.venv-newest INSTALLED=yes

# The documentation as a site, build/docs/index.html; a warning, such as a dead link, is an error.
docs: install
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

# Against a plain swarm program, in turn (about 40 minutes): make speed BASELINE=path/to/naive_swarm.py
speed: install
	$(BIN)/python tests/benchmarks/speed.py --baseline "$(BASELINE)"

# The tested set anew, with the newest versions that the ranges in pyproject.toml admit.
lock: install
	sh requirements/lock.sh $(BIN)/uv

ifeq ($(INSTALLED),yes)
install:
else
install: $(VENV)/.installed
endif

# The package is installed as a user would have it, not in place, so a file missing from the wheel fails the tests.
$(VENV)/.installed: $(VENV)/.dependencies $(SOURCES) pyproject.toml
	@rm -rf build *.egg-info
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --reinstall .
	@rm -rf build *.egg-info
	@$(BIN)/python -m compileall -q $(VENV)/lib/python3*/site-packages/thiefbench
	@touch $@

# Another TORCH than the one that is installed means another environment.
ifneq ($(shell cat $(VENV)/.torch 2>/dev/null),$(TORCH))
.PHONY: $(VENV)/.dependencies
endif
$(VENV)/.dependencies: requirements/tested.txt requirements/torch.txt requirements/uv.txt requirements/install.sh
	@sh requirements/install.sh "$(PYTHON)" "$(VENV)" "$(TORCH)"
	@touch $@

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache
