# `make` or `make help` lists the targets.
#
# VENV    the virtual environment that is made and used     (.venv/main)
# PYTHON  a version such as 3.12, or an executable, to make it with (found by itself)
# JOBS    test processes at once                             (2)
# PYTEST  options for pytest                                 (none)

VENV ?= .venv/main
PYTHON ?=
JOBS ?= 2
PYTEST ?=
DEMO := egs2_recipes/mini_an4/asr1

.DEFAULT_GOAL := help
.PHONY: help environment test lint format demo clean distclean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 22
	@echo; sed -n 's/^# \([A-Z]* .*\)/  \1/p' $(firstword $(MAKEFILE_LIST))

environment: ## virtual environment with ESPnet, this package and the test tools
	@scripts/environment.sh $(VENV) $(PYTHON)

test: environment lint ## lint, then the whole test suite
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST)

lint: environment ## ruff: rules and formatting
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: environment ## ruff: rewrite the sources
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

demo: ## train on real recordings through ESPnet's asr.sh and report
	@NEED_RECIPES=1 scripts/environment.sh $(VENV) $(PYTHON)
	@PYTHON=$(abspath $(VENV))/bin/python $(DEMO)/demo.sh

clean: ## remove the demo's data, experiments and report
	rm -rf $(addprefix $(DEMO)/,data dump exp downloads report)
	find $(DEMO) -type l -delete
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis

distclean: clean ## also the environments and the ESPnet tree
	rm -rf .venv egs2_recipes/.espnet *.egg-info
