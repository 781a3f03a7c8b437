# One command each for set-up, demo, tests, checks, figures and docs; every target makes what it needs first.

SHELL := /bin/sh
PY := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export GOTOOLCHAIN := local

.PHONY: help setup runner engine images demo test quick attack test-faults test-rl test-packages fuzz soak conformance check bench docs build clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup: .venv/.ready runner ## .venv with everything that the other targets need

.venv/.ready: pyproject.toml .ci/setup
	@.ci/setup

runner: .venv/.ready ## the Go programs for this machine, anew only when their sources changed (PLATFORMS="linux/arm64" or all: for others)
	@$(PY) hatch_build.py $(PLATFORMS)

engine: .venv/.ready ## a Docker daemon that answers (root only: installs and starts one; HERMES_NO_ENGINE=1 declines)
	@.ci/engine

images: engine ## the images of the tests, made without a registry
	@$(PY) -m tests.images.build >/dev/null

demo: ## a small language model works on real tasks in isolated slots (BACKEND=local, ssh, singularity, nomad or modal: there; TASKS=browser: a scripted agent uses a web shop)
	@.ci/demo "$(BACKEND)" $(TASKS)

quick: setup ## three minutes of tests: unit tests, the runner's own, the conformance suite on local and on busybox
	@.ci/test quick

test: setup ## Python tests on real engines, a fixed sample of them (HERMES_SAMPLE_SEED=N: another one), and the runner's own with the race detector
	@.ci/test

attack: setup ## everything that `make test` takes a sample of: attacks on every level, behaviours on every image, cheats (hours)
	@.ci/test attack

test-faults: setup ## random work under 500 seeds of faults on local, 100 on Docker, 50 on SSH, Apptainer, Nomad and Modal's client, 50 drivers killed on each (over an hour)
	@$(PY) -m tests.faults local 0-499 --at-once 3
	@if .ci/sshd; then $(PY) -m tests.faults ssh 0-49 --at-once 2; fi
	@if .ci/apptainer; then $(PY) -m tests.faults singularity 0-49 --at-once 2; fi
	@if .ci/engine && .ci/nomad; then $(PY) -m tests.faults nomad 0-49 --at-once 2; fi
	@if .ci/engine; then $(PY) -m tests.faults docker 0-99 --at-once 2 && $(PY) -m tests.faults modal 0-49 --at-once 2 && $(PY) -m tests.chaos; fi

fuzz: setup ## hostile bytes for every decoder and whole conversations for both ends (40 minutes to an hour)
	@.ci/setup fuzz || echo "fuzz: atheris cannot be had here"
	@$(PY) -m tests.fuzz.campaign

test-rl: setup ## a tiny policy learns from rewards out of slots, a small language model rolls out (five minutes; torch is 3 GB)
	@.ci/setup rl && .ci/setup demo
	@$(PY) -m pytest tests/rl

test-packages: setup ## test suites of other packages, inside of slots and outside: the same verdicts (about 20 minutes; ONLY="sh" for parts)
	@.ci/engine && $(PY) -m tests.images.build debian >/dev/null && $(PY) -m tests.packages $(ONLY)

soak: setup ## half an hour of mixed work on 128 slots, local and Docker; nothing may grow (BACKEND="ssh singularity nomad-docker nomad-singularity": there; HOSTILE=8: beside so many tenants that use up what they can)
	@.ci/engine $(if $(BACKEND),; .ci/sshd; .ci/apptainer; .ci/nomad;,&&) $(PY) -m tests.soak --html soak.html $(addprefix --backend ,$(BACKEND)) $(addprefix --hostile ,$(HOSTILE))

conformance: setup ## compare all backends, into docs/evidence/backends.md (15 minutes, on a quiet machine)
	@.ci/engine && .ci/sshd && .ci/apptainer && .ci/nomad && $(PY) -m tests.images.directories && $(PY) -m tests.images.build debian >/dev/null && $(PY) -m benchmarks.backends

check: setup ## style, types, import direction, Go checks, docs
	@.ci/check

bench: setup ## measured beside the alternatives, into benchmarks/RESULTS.md (25 to 30 minutes; ONLY="calls curves" for parts)
	@.ci/setup bench
	@.ci/sshd; .ci/apptainer; .ci/nomad || true
	@if .ci/engine; then $(PY) -m tests.images.build busybox debian >/dev/null; fi; $(PY) -m benchmarks.run $(addprefix --only ,$(ONLY))

docs: setup ## the site, into site/
	@$(PY) -m zensical build --strict

build: setup ## sdist and wheel with the Go programs for all platforms, into dist/
	@$(PY) -m hatchling build

clean: ## removes what the targets made, but neither engine nor images
	rm -rf .venv .venv-newest .cache site dist build hermes_exec/_runner hermes_exec/testing/_applets .mypy_cache .ruff_cache .hypothesis
