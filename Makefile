# Everything on a fresh machine: `make demo` and `make test` set up what they need. No root, no Docker, no GPU.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# Asked, not only looked up: version managers leave commands in the PATH that refuse to run.
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$each -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$each && break; done)
UV_VERSION := 0.13.8
BOOT := .state/uv
UV := $(BOOT)/bin/uv
VENV := .venv
RUN := PYTHONPATH=.:operator $(VENV)/bin/python
ENGINE ?= simulated
ARGS ?=
STEPS ?= 100000
INPUTS ?= 1000000
SEED ?=
# On every core; ARGS="-n 0" for one process, as a debugger needs it.
PARALLEL := -n auto --maxprocesses=8 --dist=worksteal

.PHONY: help setup binaries demo test faults hostile crash-points crowd upgrade prometheus-operator thanos gitops e2e e2e-bed kind soak screenshots read-only test-fast lint format crd docs release vllm e2e-vllm stop clean

help:  ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(UV):
	@test -n "$(PYTHON)" || { echo "make: no Python: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than 3.11: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up: uv $(UV_VERSION) in $(BOOT)"
	@$(PYTHON) -m venv $(BOOT) || { echo "make: this Python cannot make virtual environments: install its venv package (Debian: python3-venv)"; exit 1; }
	@$(BOOT)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.synced: $(UV) pyproject.toml uv.lock
	@echo "setting up: Python packages in $(VENV)"
	@UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=$(VENV) $(UV) sync --quiet --frozen --compile-bytecode --python $(PYTHON)
	@touch $@

setup: $(VENV)/.synced  ## The Python environment, from the lock file

binaries: setup  ## etcd, the Kubernetes control plane, Prometheus and Helm, built from Go modules once (about 10 minutes)
	@$(RUN) -m e2e.binaries

demo: binaries  ## The main job, live, on a real control plane (about 5 minutes; ENGINE=vllm for the real engine)
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m e2e.demo --engine $(ENGINE) $(ARGS)

test: binaries lint  ## All tests, including those on the real control plane, which run beside the others
	@echo "test: the tests that need the real vLLM are not part of this: make e2e-vllm"
	@echo "test: of the crashes at each write on the control plane this has a sample; all of them: make crash-points"
	@echo "test: canaries beside a thousand new services are not part of this: make crowd"
	@echo "test: the upgrade from an earlier version is not part of this: make upgrade"
	@echo "test: the chart under the Prometheus Operator is not part of this: make prometheus-operator"
	@echo "test: services that Argo CD keeps are not part of this: make gitops"
	@echo "test: metrics of two clusters behind a Thanos are not part of this: make thanos"
	@echo "test: the main scenes through a kubeconfig are not part of this: make e2e-bed"
	@$(RUN) -m e2e.whole_run $(ARGS)

faults: binaries  ## The fault tests as a table (docs/fault-tests.md; ARGS="-k ..." for some of them)
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m tests.faults $(ARGS)

hostile: binaries  ## The operator among hostile neighbours, each attack alone, then all for ten minutes (an hour; ARGS="--attack B7")
	@$(RUN) benchmarks/hostile.py $(ARGS)

crash-points: binaries  ## kill -9 at every write of a change, one run on the real control plane for each (an hour or more)
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m pytest e2e -m crash_points $(ARGS)

crowd: binaries  ## Two canaries while a thousand services are created at once (2 minutes)
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m pytest e2e -m crowd $(ARGS)

upgrade: binaries  ## Upgrade from an earlier version and uninstall, on a control plane of its own (2 minutes)
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m pytest e2e -m upgrade $(ARGS)

prometheus-operator: binaries  ## The chart under the real Prometheus Operator, built first (5 minutes, then 3)
	@$(RUN) -m e2e.binaries prometheus-operator
	@$(RUN) -m e2e.screenshots --prepare || echo "prometheus-operator: so no pictures of the dashboards"
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m pytest e2e -m prometheus_operator $(ARGS)

gitops: binaries  ## Chart and services kept by the real Argo CD, which is built first (4 minutes, then 3)
	@$(RUN) -m e2e.binaries argocd
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m pytest e2e -m gitops $(ARGS)

thanos: binaries  ## Two clusters behind the real Thanos, which is built first (3 minutes, then 1)
	@$(RUN) -m e2e.binaries thanos
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m pytest e2e -m thanos $(ARGS)

e2e: setup  ## The main scenes in a cluster of yours: make e2e KUBECONFIG=FILE (8 minutes; ARGS="--help" for its options)
	@test -n "$(KUBECONFIG)" || { echo "make: name a cluster: make e2e KUBECONFIG=FILE"; exit 1; }
	@$(RUN) -m e2e.cluster --kubeconfig $(KUBECONFIG) $(ARGS)

kind: setup  ## The same in a new kind cluster, with the images built and loaded; needs Docker, kubectl and helm
	@$(RUN) -m e2e.cluster.kind --kind "$$($(RUN) -m e2e.binaries --path kind)" $(ARGS)

e2e-bed: binaries  ## The same against the test bed's API server, which plays cluster and registry (9 minutes)
	@$(RUN) -m e2e.binaries kind
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m pytest e2e -m kubeconfig $(ARGS)

read-only: binaries  ## An operator that only looks, among services that it would change, for ten minutes (ARGS="--minutes 1")
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m e2e.read_only $(ARGS)

screenshots: binaries  ## Pictures of the web page and the reports for the site, checked for accessibility; needs Chromium (3 minutes)
	@$(RUN) -m e2e.screenshots --prepare
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m e2e.screenshots

soak: setup  ## Luck: STEPS=... random stories of the fleet loop, INPUTS=... for the parsers, then other examples for every property; SEED=... plays a batch again
	@$(RUN) -m tests.control.soak --steps $(STEPS) $(if $(SEED),--seed $(SEED))
	@$(if $(SEED),:,$(RUN) -m tests.fuzz --inputs $(INPUTS))
	@$(if $(SEED),:,$(RUN) -m pytest tests -m hypothesis --hypothesis-profile=search $(ARGS))

test-fast: setup  ## The tests that need no control plane (ARGS="-k ..." for some of them)
	@$(RUN) -m pytest tests $(PARALLEL) $(ARGS)

lint: setup  ## The same checks as in CI: ruff, mypy --strict, import contracts
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

format: setup  ## Format and sort imports
	@$(VENV)/bin/ruff check --fix --quiet .
	@$(VENV)/bin/ruff format .

crd: setup  ## Generate the CRD from the models
	@$(VENV)/bin/vllm-autotuner crd > crds/vllmservices.yaml
	@cp crds/vllmservices.yaml charts/vllm-autotuner/crds/vllmservices.yaml

docs: setup  ## Generate the pages that are made from code, then the site, with every link checked (.state/site)
	@$(RUN) docs/diagnosis_classes.py
	@$(RUN) docs/guardrails.py
	@$(RUN) docs/constants.py
	@$(RUN) docs/fault_tests.py
	@$(RUN) docs/invariants.py
	@$(RUN) docs/operator_metrics.py
	@$(RUN) docs/budgets.py
	@$(RUN) docs/argocd_cm.py
	@$(RUN) docs/dashboards.py
	@$(RUN) docs/api_reference.py
	@$(RUN) docs/chart_reference.py
	@$(RUN) docs/cli_reference.py
	@$(RUN) docs/fuzzing.py
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

release: setup  ## Wheel, sdist, chart, CRD, SBOM and checksums of VERSION into dist/: the same bytes from the same commit
	@test -n "$(VERSION)" || { echo "make: name the version: make release VERSION=0.1.0"; exit 1; }
	@$(RUN) tools/release.py $(VERSION) --uv $(abspath $(UV)) --helm "$$($(RUN) -m e2e.binaries --path helm)" $(ARGS)

vllm: setup  ## Install the real vLLM for CPUs (about 6 GB, once) for `make demo ENGINE=vllm` and `make e2e-vllm`
	@$(RUN) -m e2e.real_engine_command install

e2e-vllm: binaries  ## The tests that need the real vLLM; says so when it is not installed
	@$(RUN) -m e2e.enter -- $(VENV)/bin/python -m pytest -m vllm e2e $(ARGS)

stop:  ## End a test bed that was left running
	@if [ -x $(VENV)/bin/python ]; then $(RUN) -m e2e.bed_command down; fi

clean: stop  ## Remove everything that was set up or built, the user's cache of binaries included
	@if [ -x $(VENV)/bin/python ]; then $(RUN) -m e2e.binaries --clean; fi
	@rm -rf $(VENV) .state .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
