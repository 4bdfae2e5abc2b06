# Everything a contributor runs. Needs Python 3.11 or newer with pip, and nothing else: the targets make
# their own .venv from pinned, hashed sets, and make it again when these change. The demo takes what is in
# requirements-demo.txt; everything else takes constraints.txt, which has the same versions and the tools.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.run
ENV    := $(VENV)/.made

# Nothing here depends on what the caller's shell has activated. Without bytecode each process compiles everything.
unexport PYTHONPATH VIRTUAL_ENV PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PIN := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--quiet --custom-compile-command "make constraints"

# All but other SDKs of agents.
IMAGE := --extra a2a --extra artifacts --extra claude --extra frames --extra mcp --extra openai --extra otel \
	--extra prices --extra server --extra ui

.DEFAULT_GOAL := help
.PHONY: help demo test nightly mutants drill check format lint types imports wheel bench site schema constraints clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(RUN) ## Run the sample requests through guard and agents on this machine, then stop
	@$(BIN)/mesh demo

test: $(ENV) ## Run the whole test suite; ARGS='-k cycle' passes arguments on
	@tests/with-tools $(BIN)/pytest $(ARGS)

drill: $(ENV) ## Break a scratch mesh on purpose and check every promise; ARGS='--requests 400' passes options on
	@$(BIN)/python -m tests.drill $(ARGS)

nightly: $(ENV) ## Play 20,000 arbitrary stories and 16,000 of trees and swarms, and replay each (STORIES=…); over an hour
	@MESH_TEST_STORIES=$(or $(STORIES),20000) $(BIN)/pytest --timeout=0 tests/unit/protocol/test_any_story.py tests/unit/protocol/test_any_tree.py tests/unit/protocol/test_any_swarm.py tests/unit/protocol/test_any_carrying.py tests/unit/protocol/test_any_death.py tests/unit/replay/test_code.py

mutants: $(ENV) ## Put small faults into the rules, one at a time, and name those that no test notices (CHAPTERS=…); ten minutes
	@nice -n 10 $(BIN)/python -m tests.mutants $(CHAPTERS)

check: format lint types imports wheel ## Formatting, lint, types, import contracts, the wheel; make -k check goes on after a failure

format: $(ENV)
	@$(BIN)/ruff format --check .

lint: $(ENV)
	@$(BIN)/ruff check .

types: $(ENV)
	@$(BIN)/mypy

imports: $(ENV)
	@$(BIN)/lint-imports --no-logo

wheel: $(ENV) ## Build what is released into build/release, and check what is in it
	@rm -rf build/release && mkdir -p build
	@$(BIN)/python -m build --no-isolation --outdir build/release . >build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@$(BIN)/python -m tests.packaging.wheel build/release/*.whl

bench: $(ENV) ## Measure this machine
	@$(BIN)/python -m bench

site: $(ENV) ## Build the docs as a site in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

schema: $(ENV) ## Write the JSON schemas of the wire contract, and what clients/node makes of them (needs npm)
	@$(BIN)/mesh schema export --out protocol/schema
	@cd clients/node && npm install --no-audit --no-fund --no-package-lock --loglevel=error && npm run --silent generate

constraints: $(ENV) ## Pin the dependencies anew: UPGRADE=1 moves them to their newest versions
	@$(BIN)/$(PIN) $(if $(UPGRADE),--upgrade) --group dev --all-extras --output-file constraints.txt
	@$(BIN)/$(PIN) $(if $(UPGRADE),--upgrade) --constraints constraints.txt --group build $(IMAGE) \
		--output-file deploy/requirements.txt
	@$(BIN)/$(PIN) $(if $(UPGRADE),--upgrade) --constraints constraints.txt --group build --extra server \
		--output-file requirements-demo.txt

clean: ## Remove the environment and everything generated
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The system's pip fills the environment, so that a Python without ensurepip will do; pip itself is pinned.
define PIP
if $(PYTHON) -m pip --version >/dev/null 2>&1; then pip="$(PYTHON) -m pip --python $(BIN)/python"; \
elif $(BIN)/python -m ensurepip >/dev/null 2>&1; then pip="$(BIN)/python -m pip"; \
else echo "make: $(PYTHON) has neither pip nor ensurepip; install one (Debian: python3-pip)" >&2; exit 1; fi; \
$$pip install -qq --no-compile
endef

$(RUN): requirements-demo.txt pyproject.toml
	@echo "make: installing the packages that mesh needs into $(VENV); this happens once"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "make: $(PYTHON) is not Python 3.11 or newer; name one with: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv --without-pip $(VENV) || { \
		echo "make: $(PYTHON) cannot make a virtual environment; install its venv module (Debian: python3-venv)" >&2; exit 1; }
	@$(PIP) --require-hashes -r requirements-demo.txt
	@$(PIP) --no-deps --no-build-isolation --no-index -e .
	@touch $@

$(ENV): constraints.txt $(RUN)
	@echo "make: installing the developers' tools into $(VENV); this happens once"
	@$(PIP) --require-hashes -r constraints.txt
	@touch $@
