# Set-up, demo, tests, checks, benchmarks and docs. Each target first prepares its requirements.

SHELL := /bin/sh
PY := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export GOTOOLCHAIN := local

.PHONY: help setup runner engine images demo test quick attack test-faults test-rl test-packages test-doors fuzz soak conformance check bench docs build clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup: .venv/.ready runner ## create .venv with the requirements of the other targets

.venv/.ready: pyproject.toml .ci/setup
	@.ci/setup

runner: .venv/.ready ## build the Go programs for this machine if their sources have changed (PLATFORMS="linux/arm64" or all: other platforms)
	@$(PY) hatch_build.py $(PLATFORMS)

engine: .venv/.ready ## start a Docker daemon if none answers (as root, installs Docker; HERMES_NO_ENGINE=1 prevents both)
	@.ci/engine

images: engine ## build the images of the tests, without a registry
	@$(PY) -m tests.images.build >/dev/null

demo: ## a small language model works on real tasks in isolated slots, and its solved samples become a data set (BACKEND=local, ssh, singularity, nomad or modal; TASKS=browser: a scripted agent uses a web shop)
	@.ci/demo "$(BACKEND)" $(TASKS)

quick: setup ## run the tests of three minutes: unit tests, Go tests, and the conformance suite on local and on busybox
	@.ci/test quick

test: setup ## run a fixed sample of the Python tests on real engines (HERMES_SAMPLE_SEED=N: another sample), and the Go tests with the race detector
	@.ci/test

attack: setup ## run all tests of which `make test` runs a sample: attacks on every level, behaviours on every image, cheats (hours)
	@.ci/test attack

test-faults: setup ## run random work with injected faults: 500 seeds on local, 100 on Docker, 50 on SSH, Apptainer, Nomad and Modal's client; then kill 50 drivers on each (over an hour)
	@$(PY) -m tests.faults local 0-499 --at-once 3
	@if .ci/sshd; then $(PY) -m tests.faults ssh 0-49 --at-once 2; fi
	@if .ci/apptainer; then $(PY) -m tests.faults singularity 0-49 --at-once 2; fi
	@if .ci/engine && .ci/nomad; then $(PY) -m tests.faults nomad 0-49 --at-once 2; fi
	@if .ci/engine; then $(PY) -m tests.faults docker 0-99 --at-once 2 && $(PY) -m tests.faults modal 0-49 --at-once 2 && $(PY) -m tests.chaos && $(PY) -m tests.chaos.batch; fi

fuzz: setup ## fuzz every decoder with hostile bytes, and both ends with whole conversations (40 minutes to an hour)
	@.ci/setup fuzz || echo "fuzz: continuing without atheris, which could not be installed"
	@$(PY) -m tests.fuzz.campaign

test-rl: setup ## train a tiny policy with rewards from slots, and roll out a small language model (five minutes; torch is 3 GB)
	@.ci/setup rl && .ci/setup demo
	@$(PY) -m pytest tests/rl

test-packages: setup ## compare the verdicts of the test suites of other packages inside and outside of slots (about 20 minutes; ONLY="sh": some suites)
	@.ci/engine && $(PY) -m tests.images.build debian >/dev/null && $(PY) -m tests.packages $(ONLY)

test-doors: setup ## run the tests of all adapters, each in an environment with its target, outside of the clone (ONLY="mcp": some targets)
	@.ci/sshd; .ci/engine && $(PY) -m tests.images.build >/dev/null; $(PY) -m tests.doors $(ONLY)

soak: setup ## run mixed work on 128 slots for half an hour, on local and Docker; no resource may grow (BACKEND="ssh singularity nomad-docker nomad-singularity"; HOSTILE=8: add slots with hostile tenants)
	@.ci/engine $(if $(BACKEND),; .ci/sshd; .ci/apptainer; .ci/nomad;,&&) $(PY) -m tests.soak --html soak.html $(addprefix --backend ,$(BACKEND)) $(addprefix --hostile ,$(HOSTILE))

conformance: setup ## compare all backends in docs/evidence/backends.md (15 minutes, on a quiet machine)
	@.ci/engine && .ci/sshd && .ci/apptainer && .ci/nomad && $(PY) -m tests.images.directories && $(PY) -m tests.images.build debian >/dev/null && $(PY) -m benchmarks.backends

check: setup ## check style, types, structure, Go and docs
	@.ci/check

bench: setup ## measure this library and its alternatives, into benchmarks/RESULTS.md (25 to 30 minutes; ONLY="calls curves": some parts)
	@.ci/setup bench
	@.ci/sshd; .ci/apptainer; .ci/nomad || true
	@if .ci/engine; then $(PY) -m tests.images.build busybox debian >/dev/null; fi; $(PY) -m benchmarks.run $(addprefix --only ,$(ONLY))

docs: setup ## build the site, into site/
	@$(PY) -m zensical build --strict

build: setup ## build the sdist, and the wheel with the Go programs for all platforms, into dist/
	@$(PY) -m hatchling build

clean: ## remove the files that the targets created, but neither the engine nor images
	rm -rf .venv .venv-newest .cache site dist build hermes_exec/_runner hermes_exec/testing/_applets .mypy_cache .ruff_cache .hypothesis
