# All targets except help and clean first create .venv, if needed, and install the versions of constraints.txt into it.
.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-full sanitize lint types quick unit docs format report weight constraints clean bench-check

# torch is large: without bytecode on disk every start of Python would compile it again
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
UV := $(BIN)/uv
CPP := $(wildcard rmsexp/norms/kernels/cpp/*)
# one worker per core, up to 8; an idle worker takes over tests of busy ones
PARALLEL := -n auto --maxprocesses 8 --dist worksteal
# the tests that need the least time: no training, no figures, no processes, no kernels
QUICK := $(wildcard tests/test_*.py) $(addprefix tests/,norms rules metrics data records system)

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## create .venv and install rmsexp with everything that its checks need

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$$($(PYTHON) --version 2>&1) is too old: name Python 3.11 or newer, such as PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || { echo "creating .venv with $$($(PYTHON) --version)"; $(PYTHON) -m venv .venv; }
	@test -x $(UV) || $(BIN)/python -m pip install --quiet uv -c constraints.txt
	@echo "installing (half a minute the first time)"
	@$(UV) pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup ## train CIFAR-10's network on synthetic images with RMSNorm and draw its curves (about a minute)
	$(BIN)/python -m rmsexp task=cifar10 norm=rms

check: setup ## lint, types and the quickest tests (a minute on two idle cores)
	$(MAKE) --no-print-directory -j 2 lint types quick

test: setup ## run every check that CI runs
	$(MAKE) --no-print-directory -j 2 lint types unit docs

test-full: test ## run make test, tests that take minutes, and numerical tests with each instruction set, one and two threads
	$(BIN)/pytest -m minutes --nbmake tests notebooks
	for capability in default $$(grep -qw avx2 /proc/cpuinfo && echo avx2) $$(grep -qw avx512f /proc/cpuinfo && echo avx512); do \
	  for threads in 1 2; do \
	    echo "ATEN_CPU_CAPABILITY=$$capability, $$threads threads"; \
	    ATEN_CPU_CAPABILITY=$$capability RMSEXP_TEST_THREADS=$$threads $(BIN)/pytest $(PARALLEL) \
	      tests/norms tests/models tests/metrics tests/tasks || exit 1; \
	  done; \
	done

sanitize: setup ## test the C++ kernels with AddressSanitizer and UndefinedBehaviorSanitizer (five minutes)
	$(BIN)/python scripts/sanitize.py

lint: setup ## run ruff and clang-format, and check the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/lint-imports

types: setup ## run mypy
	$(BIN)/mypy

quick: setup
	$(BIN)/pytest $(PARALLEL) -m "not slow and not minutes" --ignore tests/norms/kernels $(QUICK)

unit: setup ## run the tests and two notebooks in parallel
	$(BIN)/pytest $(PARALLEL) -m "not minutes" --nbmake tests notebooks

docs: setup ## build the site, site/docs/index.html; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -c docs . site

bench-check: setup ## name what became slower since the commit BEFORE (ten minutes on idle cores)
	$(BIN)/python scripts/bench_check.py $(BEFORE)

format: setup ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

report: setup ## make the report of the committed records again
	rm -rf results/reference/report
	$(BIN)/python -m rmsexp.report results/reference --out results/reference/report
	$(BIN)/python scripts/shrink_report.py

weight: ## print the numbers of lines and words beside their budgets
	@$(PYTHON) scripts/weight.py

constraints: setup ## write the versions of .venv to constraints.txt
	@{ echo "# The versions that make installs; written by make constraints."; $(UV) pip freeze --python $(BIN)/python --exclude-editable; } > constraints.tmp
	@mv constraints.tmp constraints.txt

clean: ## remove .venv, the site and caches; results stay
	rm -rf .venv site .mypy_cache .pytest_cache .ruff_cache .hypothesis
