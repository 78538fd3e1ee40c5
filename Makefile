# Needs nothing but make and Python >= 3.11. Everything is installed into .venv, once per lock: requirements.lock names
# all that a run needs, requirements-test.lock what tests need beyond it. --no-compile: bytecode is made where a module is
# first imported, which most are not.
.DEFAULT_GOAL := run
.PHONY: run serve test slow golden mutants oracle bench fidelity docs lint clean

VENV := .venv
PY := $(VENV)/bin/python
QUIET := --quiet --quiet --disable-pip-version-check --no-input
PIP := $(PY) -m pip $(QUIET)
INSTALLED := $(VENV)/.installed
TESTED := $(VENV)/.tests
PEER := $(VENV)/peer
MEASUREMENTS := $(VENV)/.fidelity
CLUSTER := $(VENV)/.cluster
SERVED := $(VENV)/.serve
SITE := $(VENV)/docs
ARGS ?=
# What ARES is for: long, uneven outputs on GPUs with little memory. ARGS stands in place of it.
SHOWN := policy=ares trace=reasoning trace.rate=3.75 gpu=a10g cluster.instances=20

# Bytecode is kept even where the environment asks for none: a process that compiles every module anew starts 0.4 s later.
unexport PYTHONDONTWRITEBYTECODE

run: $(INSTALLED)
	@$(PY) run.py $(or $(ARGS),$(SHOWN))

# The cluster behind the API of OpenAI and vLLM: make serve ARGS="policy=chunked port=8000".
serve: $(SERVED)
	@$(PY) -m servelab serve $(ARGS)

test: $(TESTED) $(SERVED)
	@$(PY) -m pytest $(ARGS)

slow: $(TESTED) $(SERVED) $(MEASUREMENTS) $(CLUSTER)
	@$(PY) -m pytest -m slow $(ARGS)

golden: $(TESTED)
	@$(PY) -m tests.golden $(ARGS)

mutants: $(TESTED)
	@$(PY) -m tests.mutants $(ARGS)

# vLLM needs an environment of its own, some 9 GB: VLLM_PYTHON names its interpreter. ARGS="--of sglang": SGLANG_PYTHON.
oracle: $(TESTED)
	@$(PY) -m tests.oracle $(ARGS)

bench: $(INSTALLED) $(PEER)/.installed
	@$(PY) -m experiments.validation.bench $(ARGS)

fidelity: $(MEASUREMENTS)
	@$(PY) -m experiments.validation.fidelity $(ARGS)

# A site of docs/ and the README. A link between pages that leads nowhere ends it, and so does anything from a network.
# Its reference imports all that has a docstring, which pytest is needed for.
docs: $(SITE)/.installed $(TESTED)
	@$(SITE)/bin/python -m sphinx -q -W --keep-going -b html docs outputs/docs $(ARGS)
	@echo 'the site begins at outputs/docs/index.html'

lint: $(TESTED) $(SERVED)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

clean:
	rm -rf outputs multirun .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(PY):
	@for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	    if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        exec $$candidate -m venv $(VENV); \
	    fi; \
	done; \
	echo 'error: no Python >= 3.11 on the PATH; install one and run make again' >&2; exit 1

$(INSTALLED): requirements.lock | $(PY)
	@echo 'installing requirements.lock into $(VENV)' >&2
	@$(PIP) install --no-compile --no-deps -r requirements.lock
	@touch $@

$(TESTED): requirements-test.lock | $(INSTALLED)
	@echo 'installing requirements-test.lock into $(VENV)' >&2
	@$(PIP) install --no-compile --no-deps -r requirements-test.lock
	@touch $@

# Measured kernels and deployments; --no-deps, for what they need is in one of the two files.
$(MEASUREMENTS): requirements-fidelity.lock | $(INSTALLED)
	@echo 'installing requirements-fidelity.lock into $(VENV)' >&2
	@$(PIP) install --no-deps -r requirements-fidelity.lock
	@touch $@

# Ray, Slurm, PostgreSQL and the dashboard, for the tests that need them.
$(CLUSTER): requirements-cluster.lock | $(INSTALLED)
	@echo 'installing requirements-cluster.lock into $(VENV)' >&2
	@$(PIP) install --no-deps -r requirements-cluster.lock
	@touch $@

# The HTTP server.
$(SERVED): requirements-serve.lock | $(INSTALLED)
	@echo 'installing requirements-serve.lock into $(VENV)' >&2
	@$(PIP) install --no-deps -r requirements-serve.lock
	@touch $@

# The generator of the site has an environment of its own.
$(SITE)/.installed: requirements-docs.lock | $(INSTALLED)
	@echo 'installing requirements-docs.lock into $(SITE)' >&2
	@$(PY) -m venv $(SITE) && $(SITE)/bin/python -m pip $(QUIET) install --no-deps -r requirements-docs.lock
	@touch $@

# The peer simulator is optional and has an environment of its own: without it the benchmark leaves its columns empty.
$(PEER)/.installed: requirements-bench.lock | $(INSTALLED)
	@echo 'installing requirements-bench.lock into $(PEER)' >&2
	@if $(PY) -m venv $(PEER) && $(PEER)/bin/python -m pip $(QUIET) install --no-deps -r requirements-bench.lock; \
	    then touch $@; else echo 'note: the peer simulator could not be installed' >&2; fi
