# Everything a checkout needs, with Debian's python3 and its venv module as the only assumption.
# `make serve` is the quickest way in; `make check` and `make test` are what CI runs.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
LAYER  := $(VENV)/clients
PIP    := $(BIN)/python -m pip --disable-pip-version-check
HOST   ?= 127.0.0.1
PORT   ?= 8000
ARGS   ?=

# GNU OpenMP's threads spin while they wait, which starves the other processes of a test run on few cores.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help install install-dev serve test test-clients test-gpu test-gpu-sanitizer check format wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 22

install: $(VENV)/.installed  ## make .venv with the octavo command in it

# torch goes first and by its exact version, so that the resolver takes the build that this machine's index offers
# (a CPU build where there is one) and nothing later can change it.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt "$$(grep -m1 '^torch==' constraints.txt)"
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

install-dev: $(VENV)/.installed-dev

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable '.[test,dev]'
	@touch $@

serve: install  ## serve the default model on 127.0.0.1:8000 (PORT=8001 ARGS="MODEL --flag ..." for more)
	$(BIN)/octavo serve $(ARGS) --host $(HOST) --port $(PORT)

test: install-dev  ## the whole test suite (ARGS="tests/core -k name" for a part)
	$(BIN)/pytest $(ARGS)

test-clients: $(LAYER)/.installed  ## LangChain, LiteLLM and lm-eval against a live server
	$(LAYER)/bin/python -P -m pytest -m clients tests/contract $(ARGS)

# The clients bring some sixty packages and a plugin of pytest's, which .venv is kept free of. Their environment is a layer
# over it: what .venv has, torch above all, is found there, and only what is missing is installed.
$(LAYER)/.installed: $(VENV)/.installed-dev
	$(BIN)/python -m venv $(LAYER)
	$(BIN)/python -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" \
	  > "$$($(LAYER)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/octavo-layer.pth"
	$(LAYER)/bin/python -m pip --disable-pip-version-check install --constraint constraints.txt --editable '.[clients]'
	@touch $@

test-gpu: install-dev  ## only the tests that need a GPU
	$(BIN)/pytest -m gpu $(ARGS)

# Only the project's kernels are instrumented. KERNEL_REPEATS: launches of the check for results that change.
KERNELS = $(shell grep -ho 'def _[a-z_]*_kernel' kernels/triton/*.py | cut -c5-)

test-gpu-sanitizer: install-dev  ## the kernels' checks under compute-sanitizer, for memory and races (ARGS="-k decode")
	for tool in memcheck racecheck; do \
	  KERNEL_REPEATS=3 compute-sanitizer --tool $$tool --error-exitcode 9 $(KERNELS:%=--kernel-name kns=%) \
	    $(BIN)/python -P $(BIN)/pytest -q tests/gpu/test_triton_kernels.py $(ARGS) || exit; done

check: install-dev  ## formatter, linter, type checker, house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/pytest -q tests/house

format: install-dev  ## format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: install  ## build dist/octavo-*.whl
	$(PIP) wheel --no-deps --wheel-dir dist .

clean:  ## remove what these targets made, .venv included
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
