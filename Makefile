# `make demo` and `make test` need Python >= 3.11 and make, nothing else.

# Python 3.12 where there is one: it gets the jax version that the constraints for
# GPU machines name. 3.11 works as well.
PYTHON ?= $(shell PYENV_VERSION=3.12.1 python3 -c 'import sys; print(sys.executable)' 2>/dev/null || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

export NPROC ?= 32
export JAX_PLATFORMS ?=
export WANDB_SILENT = true

.PHONY: demo test lint unit env clean

demo: env
	$(BIN)/python -m experiments.demo

test: lint unit

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

unit: env
	JAX_PLATFORMS=cpu $(BIN)/pytest -n 2 --dist worksteal

env: $(READY)

# reasoning-gym builds one of its dependencies with a C compiler. Where that fails the
# rest is installed without it, and the demo says which problems it uses instead.
$(READY): pyproject.toml tools/install.sh $(wildcard constraints-*.txt)
	bash tools/install.sh "$(PYTHON)" "$(VENV)"
	touch $(READY)

clean:
	rm -rf $(VENV) .cache .jax_cache .mypy_cache .pytest_cache .ruff_cache
