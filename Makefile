# `make demo` and `make test` each set everything up first: a virtual environment in .venv, from constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BROWSER := $(VENV)/browser/.installed

.PHONY: setup browser demo demo-smollm2 test test-cookbook test-sdks test-libraries lint types clean help

help:
	@echo "make setup         the environment, in $(VENV)"
	@echo "make demo          a tiny policy learns number_guess by RL (about half a minute)"
	@echo "make demo-smollm2  SmolLM2-135M learns a text task by RL with LoRA (about two minutes)"
	@echo "make example-NAME  the run of examples/NAME/config.toml, such as make example-gomoku_self_play"
	@echo "make browser       a headless Chromium for the tests of the dashboard, in $(VENV)"
	@echo "make test          all tests, in two processes; WORKERS=N for others"
	@echo "make test-libraries  libraries that can't share .venv, each in a virtual environment of its own"
	@echo "make test-cookbook  the recipes of tinker-cookbook against a service, in a virtual environment of their own"
	@echo "make test-sdks     official Tinker clients of many versions against a service"
	@echo "make lint          formatting, lint and types"
	@echo "make clean         remove what the commands above made"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "tinker-actors needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@# tests of the CUDA sources compile them for the CPU: where the machine has no compiler, one comes from PyPI
	@command -v g++ >/dev/null || command -v clang++ >/dev/null || $(BIN)/python -m pip install --quiet ziglang==0.17.1
	@touch $@

browser: $(BROWSER)

$(BROWSER): tests/browser/install.py | $(STAMP)
	@test -n "$$TINKER_ACTORS_CHROMIUM" || $(BIN)/python tests/browser/install.py
	@mkdir -p $(@D) && touch $@

demo: $(STAMP)
	$(BIN)/tinker-actors run examples/number_guess/config.toml

demo-smollm2: $(STAMP)
	$(BIN)/tinker-actors models fetch smollm2-135m
	$(BIN)/tinker-actors run examples/smollm2_last_word/config.toml

example-%: $(STAMP)
	$(BIN)/tinker-actors run examples/$*/config.toml

# The files of tests are shared out to this many processes; tests are hardly any faster with more than there are cores.
WORKERS ?= 2

test: $(STAMP) $(BROWSER)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

# Libraries whose requirements clash with ours or with each other: one virtual environment for each, in .libraries.
APART := tests/actors/apart tests/environments/libraries/apart tests/telemetry/apart
OURS := tests/environments/libraries/apart/ours.in
LIBRARIES := $(basename $(notdir $(wildcard $(APART:%=%/*.txt))))
vpath %.txt $(APART)

test-libraries: $(LIBRARIES:%=test-library-%)

.PRECIOUS: .libraries/%/.installed

test-library-%: .libraries/%/.installed
	PYTHONPATH=src .libraries/$*/bin/python -m pytest -m libraries $(wildcard $(APART:%=%/test_$*.py))

.libraries/%/.installed: %.txt $(OURS)
	$(PYTHON) -m venv .libraries/$*
	.libraries/$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(OURS) --requirement $<
	@touch $@

# The cookbook's recipes, whose requirements clash with ours; they talk to a service that runs in .venv.
RECIPES := .libraries/recipes

test-cookbook: $(STAMP) $(RECIPES)/.installed
	COOKBOOK_PYTHON=$(RECIPES)/bin/python $(BIN)/python -m pytest -m cookbook tests/gateway/cookbook

$(RECIPES)/.installed: tests/gateway/cookbook/requirements.txt
	$(PYTHON) -m venv $(RECIPES)
	$(RECIPES)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

# Tinker clients of other versions, each in a folder of its own; what they need is in .venv.
SDKS := .libraries/sdks

test-sdks: $(STAMP) $(SDKS)/.installed
	TINKER_SDKS=$(SDKS) $(BIN)/python -m pytest -m sdks tests/gateway/sdks

$(SDKS)/.installed: tests/gateway/sdks/versions.txt
	for version in $$(cat $<); do \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	    --target $(SDKS)/$$version tinker==$$version || exit 1; \
	done
	@touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

clean:
	rm -rf $(VENV) .libraries runs build dist
