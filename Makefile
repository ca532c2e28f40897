# Commands for developers and first-time users. Each target sets up .venv first.
# PROFILE=cpu|gpu overrides the detected profile; PYTHON=... chooses the interpreter.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PROFILE ?=
# The tests start hundreds of processes, and each would compile our code again.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
CODE := $(wildcard headrace services rollout reward learner recipes bench deploy tests)
# Four files at a time on two cores, because tests mostly wait for processes to start and to end. The
# longest files (whole installations) come first, so none runs alone at the end.
TIERS := --durations 15 -n 4 --dist loadfile --no-loadscope-reorder tests/e2e tests/chaos tests/browser tests/integration tests/security tests/unit

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## the virtual environment .venv, from the lock file of this machine's profile
	@deploy/setup.sh $(PROFILE)

.PHONY: demo
demo: setup ## a policy that learns, from nothing, in minutes
	@$(BIN)/headrace demo

.PHONY: demo-agent
demo-agent: setup ## an agent that learns to use its tool, over the OpenAI API, in minutes
	@$(BIN)/headrace demo --agent

.PHONY: up
up: setup ## all processes on this machine: headrace up
	@$(BIN)/headrace up

.PHONY: guide
guide: setup ## the guide of http://127.0.0.1:8000/guide again, from docs/: seconds
	@$(BIN)/python -m deploy.guide

.PHONY: lint
lint: setup ## ruff, mypy, the chart, the Dockerfile, Compose files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)
	$(BIN)/python deploy/chart_lint.py
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml deploy/compose.*.yml
	@! command -v promtool >/dev/null || promtool check rules deploy/monitoring/alerts.yml

.PHONY: check
check: lint ## lint and the unit tests: under two minutes
	@$(BIN)/python -m pytest tests/unit -q -n 2

.PHONY: test
test: setup ## everything that must pass: lint, unit, integration, kills, end to end with a real vLLM
	@# Lint takes one core for half a minute, in which the first tests wait for processes to start.
	@$(MAKE) --no-print-directory lint & \
	$(BIN)/python -m pytest $(TIERS); tests=$$?; \
	wait $$! || { echo "make lint failed: what it found is above the tests' output" >&2; exit 1; }; \
	exit $$tests

.PHONY: test-gpu
test-gpu: setup ## the kernels of CUDA against float32, on a machine with an NVIDIA GPU: minutes
	@$(BIN)/python -m pytest tests/gpu

.PHONY: test-bench
test-bench: setup ## the benchmarks of the store and of leases, small: a minute
	@$(BIN)/python -m pytest tests/bench

.PHONY: test-exports
test-exports: setup ## exported models in transformers 4.45, 4.51 and 4.57, which it installs: a minute
	@$(BIN)/python -m pytest tests/exports

.PHONY: test-demo-agent
test-demo-agent: setup ## make demo-agent reaches its reward: five minutes
	@$(BIN)/python -m pytest tests/demo

.PHONY: chaos
chaos: setup ## each kind of kill once, with a scripted generator (part of make test): three minutes
	@$(BIN)/python -m pytest tests/chaos

.PHONY: test-chaos
test-chaos: setup ## each kind of kill once and 6 power cuts, against a real vLLM
	@HEADRACE_CHAOS_VLLM=real $(BIN)/python -m pytest tests/chaos
	@HEADRACE_CHAOS_VLLM=real $(BIN)/python -m tests.chaos.power_cuts 6

.PHONY: test-slurm
test-slurm: setup ## the jobs of deploy/slurm on a real Slurm of two nodes; needs root, slurm-wlm and munge: five minutes
	@$(BIN)/python -m pytest tests/slurm -rs

.PHONY: test-compose
test-compose: setup ## the CPU profile of docker-compose.yml in real containers, killed in turn: 15 minutes
	@$(BIN)/python -m pytest tests/compose

.PHONY: soak
soak: setup ## half an hour of random kills: nothing is lost, nothing grows (HEADRACE_SOAK_MINUTES)
	@$(BIN)/python -m tests.chaos.soak

.PHONY: format
format: setup ## put the code into its standard form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: setup ## the figures of docs/benchmarks.md, measured here
	@$(BIN)/headrace bench

.PHONY: bench-store
bench-store: setup ## what a group costs in Redis, from one worker to 1,024: two minutes
	@$(BIN)/python -m bench.store

.PHONY: bench-readers
bench-readers: setup ## what the readers of the API cost a run: three minutes
	@$(BIN)/python -m bench.readers

.PHONY: bench-page
bench-page: setup ## how fast the page is with 10,000 runs, in Chromium: a minute
	@$(BIN)/python -m tests.browser.measure

.PHONY: bench-leasing
bench-leasing: setup ## how busy leases keep 56 workers with large groups, in simulated time: three minutes
	@$(BIN)/python -m bench.leasing

.PHONY: bench-push
bench-push: setup ## how long a version takes to all hosts, on simulated links: two minutes
	@$(BIN)/python -m bench.push

.PHONY: bench-learner
bench-learner: setup ## the learner's speed and memory against plain transformers: five minutes
	@$(BIN)/python -m bench.learner

.PHONY: bench-gpu
bench-gpu: setup ## on a GPU: its tests, kernels, the learner, and the whole loop with vLLM: 15 minutes
	@$(BIN)/python -m bench.gpu

.PHONY: page
page: setup ## the page's script and style, services/gateway/page/dist/, from its sources; needs Node 20
	$(BIN)/python -m deploy.openapi_document > services/gateway/page/openapi.json
	cd services/gateway/page && npm ci --no-audit --no-fund && npm run types && npm run check && npm run build

.PHONY: client
client: setup ## the generated files and the reference of the Python client, from the gateway's API
	$(BIN)/python -m deploy.client_code

.PHONY: lock
lock: ## resolve the dependencies again into deploy/locks/
	@deploy/lock.sh

.PHONY: clean
clean: ## remove caches; .venv and run data stay
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
