# make demo | test | test-quick | test-flaky | test-lowest | lint | coverage | mutants | wheel | sbom | bench | bench-recovery | gym | gpu-check | soak | sim | clean
#
# Each sets up what it needs in .venv first: nothing but Python 3.10 or newer with its venv module, and a package index
# (pip's own configuration says which), has to be there. PYTHON=… names the interpreter. torch comes first, so that
# nothing after it pulls in another build: where the index offers one for the CPU alone (a version ending in +cpu), pip
# takes that; where the machine has an NVIDIA GPU, the plain one.

# Thousands of processes are started here: each would compile guardrun anew.
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := pyproject.toml constraints.txt
PYTHON ?=
PYTEST_ARGS ?=
# Most tests wait most of the time: as many workers as there are CPUs compute, the others wait (tests/support/spread.py).
# 0: one after the other, as for --pdb.
WORKERS ?= $(shell n=$$(nproc); echo $$(( n < 4 ? 4 * n : 12 )))
# The engine's tests compute, and never wait.
CPUS := $(shell nproc)
GYM_ARGS ?=
LIFE_ARGS ?=
MUTANTS_ARGS ?=
SIM_ARGS ?=
# of test-flaky: how many runs, and which tests (as for pytest's -k)
N ?= 10
K ?=
# of test-lowest: which Python has torch, and which torch (the lowest has only builds of gigabytes on the usual index);
# the lowest Python, without torch where it is another one
LOWEST_PYTHON ?= $(BIN)/python
LOWEST_TORCH ?= $(TORCH)
LOWEST_OLDER ?= python3.10
# of coverage: per cent of the engine's lines and branches together, and of its branches alone, by its own tests
ENGINE_COVERAGE := 95
BRANCHES := import json, sys; t = json.load(sys.stdin)['totals']; share = 100 * t['covered_branches'] / t['num_branches']; \
	print(f'of its branches {share:.1f} %'); sys.exit(share < $(ENGINE_COVERAGE))
FT_LAUNCHER := nvidia-resiliency-ext==0.4.1
# The newest for Python 3.11. Its wheels are for a newer glibc; all that is compiled in them is a profiler's library.
FT_LAUNCHER_NEWEST := nvidia-resiliency-ext==0.6.0
TORCHFT := torchft==0.2.0
RECOVERY_ARGS ?=

.PHONY: help demo demo-slurm test test-quick test-flaky test-lowest lint types unused coverage mutants wheel sbom bench bench-recovery gym gym-emu gym-numbers gym-hour gym-life gym-night gpu-check soak sim setup setup-dev clean

help:
	@echo "make demo    train under guardrun; one rank hangs once, guardrun finds it, explains it and resumes (2 minutes)"
	@echo "make demo-slurm  a Slurm job of three nodes and a spare, on this machine; a node goes dark (as root, with slurm-wlm and munge)"
	@echo "make test    all tests (PYTEST_ARGS='tests/engine -x' for some, WORKERS=0 one after the other)"
	@echo "make test-quick   what one runs before a commit: which tests that is, says tests/support/quick.py"
	@echo "make test-flaky   all tests, or some, many times beside busy processes and a slow disk (N=10, K='hang and not fleet')"
	@echo "make test-lowest  some tests, with the lowest versions that pyproject.toml allows (docs/testing.md)"
	@echo "make lint    style, types, code that nothing uses, and what may import what; then coverage"
	@echo "make coverage   the engine by its own tests: fails below $(ENGINE_COVERAGE) % of lines and branches, or of branches"
	@echo "make mutants    mistakes planted in a copy: does a test notice each? (MUTANTS_ARGS='-j 2', '--suite quick')"
	@echo "make wheel   dist/*.whl, the same bytes from the same commit"
	@echo "make sbom    dist/*.cdx.json beside that wheel: what it brings with it, versions and licences (CycloneDX)"
	@echo "make bench   guardrun beside torchrun, in figures"
	@echo "make bench-recovery  what a killed rank costs under guardrun, torchrun, ft_launcher and torchft (RECOVERY_ARGS=--quick)"
	@echo "make gym     faults and decoys under guardrun, torchrun and NVIDIA's ft_launcher (GYM_ARGS='--only gil')"
	@echo "make gym-emu    faults and decoys on an emulated device with NCCL, under guardrun and torchrun (GYM_ARGS='--jobs 3')"
	@echo "make gym-numbers trainings whose loss goes wrong, and others that only look so (GYM_ARGS='--jobs 3')"
	@echo "make gym-hour   an hour of decoys in one run"
	@echo "make gym-life   scripts of daily life that look like a hang, under torchrun and guardrun (LIFE_ARGS='--only judge*')"
	@echo "make gym-night   the same in random order, until they have made eight hours of jobs"
	@echo "make gpu-check   on a machine with a GPU: sensors, NCCL's records, faults and decoys, kept in .gpu-check (docs/accelerators.md)"
	@echo "make soak    the simulations, checkpoints that are a few bytes off, runs killed at 200 moments, and faults of guardrun's own parts: much longer"
	@echo "make sim     10,000 nodes for two weeks in simulation, beside torchrun (two hours; SIM_ARGS=--quick)"
	@echo "make clean   remove .venv and whatever was built or run here"

demo: $(VENV)/.stamp
	@$(BIN)/python examples/demo/run.py

demo-slurm: $(VENV)/.stamp
	@$(BIN)/python examples/demo/on_slurm.py

SIDE_BY_SIDE := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

# In a quiet moment: beside other tests it takes minutes. What does not compile is told by the run.
BUILD_EMU := { ! command -v g++ >/dev/null || $(BIN)/python -m tests.emu.build >/dev/null 2>&1 || true; }

test: $(VENV)/.stamp-test
	@$(BUILD_EMU)
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS)

test-quick: $(VENV)/.stamp-test
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -p tests.support.quick $(PYTEST_ARGS)

test-flaky: $(VENV)/.stamp-test
	@$(BUILD_EMU)
	@$(BIN)/python -m tests.support.flaky --runs $(N) $(if $(K),-k '$(K)') -- $(SIDE_BY_SIDE) $(PYTEST_ARGS)

# In environments of its own, in .lowest.
test-lowest: $(VENV)/.stamp-dev
	@$(BIN)/python -m tests.support.lowest --python $(LOWEST_PYTHON) --torch $(LOWEST_TORCH) --older $(LOWEST_OLDER)

# mypy has use for one CPU alone: what else there is goes on beside it.
lint: $(VENV)/.stamp-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory --jobs=$(CPUS) --output-sync=target types unused coverage

types: $(VENV)/.stamp-dev
	@$(BIN)/mypy
	@$(BIN)/mypy tests/conftest.py tests/support tests/mutants tests/project tests/bench tests/gym tests/faults benchmarks examples/demo/run.py

unused: $(VENV)/.stamp-dev
	@$(BIN)/vulture
	@$(BIN)/python -m pytest -q tests/project/test_purity.py tests/project/test_layout.py tests/project/test_docs.py

# The sum decides; of the files those are told that are below the bound themselves, with what is missing.
coverage: $(VENV)/.stamp-dev
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -n $(CPUS) --dist loadscope --no-loadscope-reorder tests/engine
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report -m --sort=cover --fail-under=$(ENGINE_COVERAGE) | awk '$$6 + 0 < $(ENGINE_COVERAGE) || /^TOTAL/'
	@$(BIN)/coverage json -q -o - | $(BIN)/python -c "$(BRANCHES)"

mutants: $(VENV)/.stamp-dev
	@$(BIN)/python tests/mutants/run.py $(MUTANTS_ARGS)

# Dated by the last commit, wherever and whenever it is built; from an archive without a history by hatchling's own date.
wheel: $(VENV)/.stamp-dev
	@SOURCE_DATE_EPOCH="$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 1580601600)}" \
		$(BIN)/python -m hatchling build -t wheel

# Beside that wheel alone: those of other versions go first.
sbom:
	@rm -f dist/guardrun-*.whl dist/guardrun-*.cdx.json
	@$(MAKE) --no-print-directory wheel
	@SOURCE_DATE_EPOCH="$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 1580601600)}" \
		$(BIN)/python -m tests.support.sbom dist

bench: $(VENV)/.stamp-dev
	@$(BIN)/python benchmarks/run.py

# Launchers that can't be installed here are left out, which the command says.
bench-recovery: $(VENV)/.stamp-dev
	@$(MAKE) --no-print-directory -k .gym/venv/.stamp .gym/nvrx/.stamp .gym/torchft/.stamp || true
	@$(BIN)/python -m benchmarks.recovery $(RECOVERY_ARGS)

gym: $(VENV)/.stamp-dev .gym/venv/.stamp
	@$(BIN)/python benchmarks/gym/run.py $(GYM_ARGS)

gym-emu: $(VENV)/.stamp-dev
	@$(BIN)/python benchmarks/gym/run.py --emu $(GYM_ARGS)

gym-numbers: $(VENV)/.stamp-dev
	@$(BIN)/python benchmarks/gym/numbers.py $(GYM_ARGS)

gym-hour: $(VENV)/.stamp-dev
	@$(BIN)/python benchmarks/gym/run.py --hour --results .gym/hour.jsonl $(GYM_ARGS)

gym-life: $(VENV)/.stamp-dev
	@$(BIN)/python benchmarks/gym/life.py $(LIFE_ARGS)

gym-night: $(VENV)/.stamp-dev
	@$(BIN)/python benchmarks/gym/life.py --night 8 --results .gym/night.jsonl $(LIFE_ARGS)

# With the Python that has a torch for the GPU, and guardrun's dependencies: the environment above has a CPU build.
gpu-check: PYTHON = python3
gpu-check:
	@PYTHONPATH=$(CURDIR)/src:$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m benchmarks.gpu.check --out .gpu-check $(GPU_ARGS)

soak: $(VENV)/.stamp-dev
	@$(BIN)/python -m pytest --hypothesis-profile=soak --timeout=3600 tests/engine tests/sim tests/checkpoints/test_fuzz.py \
		tests/runs/resuming/test_killed_runs.py tests/runs/resuming/test_killed_saves.py \
		tests/runs/resuming/test_saved_copies.py tests/faults $(PYTEST_ARGS)

sim: $(VENV)/.stamp-dev
	@$(BIN)/python benchmarks/sim/run.py $(SIM_ARGS)

setup: $(VENV)/.stamp
setup-dev: $(VENV)/.stamp-test

# The first interpreter that is new enough and can make environments.
define FIND_PYTHON
wanted='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))'; \
for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10); do \
	if "$$python" -c "$$wanted" 2>/dev/null; then echo "$$python"; exit 0; fi; \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then \
		lame="$$python: new enough, but without venv (Debian, Ubuntu: apt-get install python3-venv)"; fi; \
done; \
echo "No Python 3.10 or newer with its venv module among: $(or $(PYTHON),python3 python3.13 … python3.10)" >&2; \
echo "$${lame:-Install one, or name it: make PYTHON=/path/to/python3}" >&2; exit 1
endef

$(BIN)/python:
	@python=$$($(FIND_PYTHON)); \
	echo "Setting up $(VENV) with $$python ($$("$$python" --version))"; \
	"$$python" -m venv $(VENV)

# On a GPU machine pip would still prefer +cpu where its index has both.
$(VENV)/.stamp: $(SOURCES) | $(BIN)/python
	@echo "Installing torch $(TORCH) and what guardrun needs"
	@if nvidia-smi -L >/dev/null 2>&1; then \
		$(PIP) install -q -c constraints.txt 'torch==$(TORCH),!=$(TORCH)+cpu'; \
	else \
		$(PIP) install -q -c constraints.txt torch==$(TORCH); \
	fi
	@$(PIP) install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp
	@echo "Installing what tests and lints need"
	@$(PIP) install -q -c constraints.txt -e '.[dev,realworld]'
	@touch $@

# Interpreters that a run of the tests starts say what starting cost: a .pth file has them do so. Tests are compiled
# here, once: each of the workers would do so at the same time, and all of them; so are the characters counted of which
# hypothesis makes texts, and beside that the emulated device is built (docs/emu.md).
$(VENV)/.stamp-test: $(VENV)/.stamp-dev tests/support/startup_log.py
	@$(BIN)/python -m tests.support.startup_log
	@$(BUILD_EMU) & $(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true; \
	$(BIN)/python -c 'from hypothesis.strategies import text; text().validate()'; wait
	@touch $@

# Other launchers, each apart from what guardrun is tested with, but over the same torch: a .pth file leads there.
define OVER_TORCH
@$(BIN)/python -m venv $(@D)
@$(BIN)/python -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])' > $$($(PURELIB))/project.pth
endef
PURELIB = $(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
PIP_THERE = $(@D)/bin/python -m pip --disable-pip-version-check install -q

.gym/venv/.stamp: $(VENV)/.stamp-dev
	@echo "Installing NVIDIA's ft_launcher, to compare with"
	$(OVER_TORCH)
	@$(PIP_THERE) --no-deps '$(FT_LAUNCHER)' defusedxml
	@$(@D)/bin/ft_launcher --help > $(@D)/help.txt
	@touch $@

# With what it asks for, but torch.
.gym/nvrx/.stamp: $(VENV)/.stamp-dev
	@echo "Installing NVIDIA's ft_launcher in its newest version, to compare with"
	$(OVER_TORCH)
	@$(PIP_THERE) --no-deps --only-binary :all: --platform manylinux_2_39_$$(uname -m) --target "$$($(PURELIB))" \
		'$(FT_LAUNCHER_NEWEST)'
	@$(PIP_THERE) defusedxml 'grpcio>=1.76,<2' grpcio-tools httpx nvidia-ml-py packaging protobuf psutil pyyaml
	@$(@D)/bin/python -m nvidia_resiliency_ext.fault_tolerance.launcher --help > $(@D)/help.txt
	@touch $@

.gym/torchft/.stamp: $(VENV)/.stamp-dev
	@echo "Installing torchft, to compare with"
	$(OVER_TORCH)
	@$(PIP_THERE) -c constraints.txt '$(TORCHFT)'
	@$(@D)/bin/python -c 'import torchft'
	@touch $@

clean:
	rm -rf $(VENV) .gym .lowest .gpu-check build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* .demo guardrun-runs
	rm -rf examples/demo/out examples/demo/guardrun-runs examples/demo/*.out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
