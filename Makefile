# Every target does its own set-up, and is quick when there is nothing to do.
#
#   VENV=DIR        the virtual environment (.venv)
#   PYTHON=…        the Python to make it with (the newest of 3.13, 3.12, 3.11 that works)
#   ARGS="…"        more arguments for pytest:  make test ARGS="tests/bench -x"
#   JOBS=N          tests side by side, each with a cluster of its own (2; 0 for one after the other)
#   NAME=… QUICK=1  which benchmark, and a short one:  make bench NAME=cluster QUICK=1

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FETCHED := $(VENV)/.fetched
# By file: what stands in one file shares what is slow to set up. In the order of tests/conftest.py.
SIDE_BY_SIDE = $(if $(filter-out 0,$(JOBS)),-n $(JOBS) --dist loadfile --no-loadscope-reorder)
ARGS ?=
JOBS ?= 2
NAME ?= all
QUICK ?=

.DEFAULT_GOAL := help
.PHONY: help install java demo check ready test test-full up down bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## the virtual environment and every package, pinned by constraints.txt

demo: java $(FETCHED) ## money moves while everything is killed under it; a naive twin beside it; counted at the end
	@$(BIN)/tallymark demo

check: $(STAMP) ## ruff, mypy --strict, the import contract
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The jars are fetched while mypy thinks: one waits for the network, the other for the CPU.
ready: java $(STAMP)
	@$(MAKE) --no-print-directory -j 2 $(FETCHED) check

test: ready ## check, then each promise and each crash point once (CI runs this)
	$(BIN)/python -m pytest -m "not full" $(SIDE_BY_SIDE) $(ARGS)

# The second pass has a cluster of its own: a warm one holds the data of PostgreSQL 18.
test-full: ready ## everything: whole matrices, long torture, and the ordinary suite again on PostgreSQL 16
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)
	env -u TALLYMARK_TEST_HOME TALLYMARK_TEST_POSTGRES=16 $(BIN)/python -m pytest -m "not full" $(SIDE_BY_SIDE) $(ARGS)

up: java $(FETCHED) ## a local cluster (three brokers and PostgreSQL) that stays up
	@$(BIN)/tallymark local up

down: $(STAMP) ## stop the local cluster, keep its data
	@$(BIN)/tallymark local down

bench: java $(FETCHED) ## measure: all benchmarks, or NAME=cluster; QUICK=1 for a short run
	@$(BIN)/python -m bench $(NAME) $(if $(QUICK),--quick)

docs: $(STAMP) ## build the documentation into site/, warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# A cluster that still runs here is stopped first: deleting its files would leave its processes behind.
clean: ## delete what the other targets made: environment, caches, the local cluster of this folder
	@if [ -d .tallymark ] && [ -x $(BIN)/tallymark ]; then $(BIN)/tallymark local down --wipe --home .tallymark; fi
	rm -rf $(VENV) .tallymark site build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# Packages are compiled when they are first imported: most of them never are, and compiling all is a third of the time.
# A candidate counts only if it runs (a pyenv shim may be there and fail), is new enough and can make environments.
$(STAMP): pyproject.toml constraints.txt
	@set -e; \
	if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  found=; \
	  for candidate in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	    if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	      found=$$candidate; break; \
	    fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "error: Python 3.11 or newer with venv is needed: install it (on Debian: apt install python3 python3-venv)" >&2; \
	    exit 3; \
	  fi; \
	  echo "Making $(VENV) with $$($$found --version)"; \
	  $$found -m venv --clear $(VENV); \
	fi; \
	echo "Installing packages into $(VENV) (the first time about 600 MB: some minutes)"; \
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' > $(VENV)/dev.txt; \
	{ $(BIN)/python -m pip install --disable-pip-version-check --no-compile -e '.[all]' -r $(VENV)/dev.txt -c constraints.txt; \
	  echo $$? > $(VENV)/pip.status; \
	} | grep -v -E '^(Requirement already satisfied|  (Preparing|Getting|Installing build|Checking if))' || true; \
	[ "$$(cat $(VENV)/pip.status)" = 0 ] || exit 3; \
	$(BIN)/python -m pip check --disable-pip-version-check; \
	touch $@

# Once per environment; what is lost of it later is fetched when it is needed.
$(FETCHED): $(STAMP)
	@$(BIN)/tallymark local fetch
	@touch $@

# Looked for before anything is installed: the answer should not come after a long download.
java:
	@seen=; \
	for java in $${JAVA_HOME:+"$$JAVA_HOME/bin/java"} java; do \
	  version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	  if [ -n "$$version" ] && [ "$$version" -ge 17 ] && [ "$$version" -le 21 ]; then exit 0; fi; \
	  seen="$$seen$${version:+ $$version}"; \
	done; \
	echo "error: Java 17 to 21 is needed, found:$${seen:- none}; install it (on Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME" >&2; \
	exit 3
