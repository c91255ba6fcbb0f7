# Every target sets up what it needs: a virtual environment in .venv, made by uv, with the versions of constraints.txt.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types unit notebooks format constraints clean

# torch is large: without bytecode on disk each start would compile it again
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
UV := $(BIN)/uv

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## create .venv and install rmsexp with all that its checks need

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "creating .venv with $$($(PYTHON) --version)"; $(PYTHON) -m venv .venv; }
	@test -x $(UV) || $(BIN)/python -m pip install --quiet uv -c constraints.txt
	@echo "installing (half a minute the first time)"
	@$(UV) pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup ## train CIFAR-10's built-in twin with RMSNorm and draw its curves (about a minute)
	$(BIN)/python -m rmsexp task=cifar10 norm=rms

test: setup lint types unit notebooks ## every check that CI runs

lint: setup ## ruff, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup ## mypy
	$(BIN)/mypy

unit: setup ## pytest
	$(BIN)/pytest

notebooks: setup ## run the notebooks
	$(BIN)/pytest --nbmake notebooks

format: setup ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: setup ## write the versions of .venv to constraints.txt
	@{ echo "# The versions that make installs; written by make constraints."; $(UV) pip freeze --python $(BIN)/python --exclude-editable; } > constraints.tmp
	@mv constraints.tmp constraints.txt

clean: ## remove .venv and caches; results stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
