# setup demo test lint bench bench-ci bench-peers bench-serving soak lab deb: each does its own set-up and may be run again at any time.
#
#   make demo                   plan, start the daemon on the embedded model, stream a completion, stop
#   make test                   every test that this machine can run
#   make test-upstream          llama.cpp's own operator tests, run on our device
#   make soak SECONDS=300       64 clients of every kind against a live daemon: no leak, no hang, no wrong answer
#   make lab                    the service under real systemd, on virtual machines with several NUMA nodes
#   make bench                  every speed bar as a ratio, in one table; bench-ci: the quick ones, with three tries
#   make bench-peers            against plain llama.cpp and kt-kernel
#   make bench-serving          4 and 8 streams over a loop of llama.cpp's own, and what HTTP costs
#   make deb                    the Debian package, in build/deb
#   make setup NATIVE=OFF       ggml for the AVX2 baseline instead of this CPU (for packages)
#   make setup GPU=cuda         ggml's GPU module as well: cuda, hip, vulkan or none; by default what the GPUs and
#                               toolkits here allow. CUDA_ARCHITECTURES=90 names what CUDA is compiled for
#   make test-vulkan            the hybrid path on a software Vulkan device (compiles for several minutes once)
#   make gpu-check              the hybrid path on a real GPU, with speeds: a report in minutes, unattended
#   make PYTHON=python3.12 ...  another interpreter

PYTHON ?= python3
NATIVE ?= ON
GPU ?= detect
CUDA_ARCHITECTURES ?= native
VENV := .venv
BIN := $(VENV)/bin
LOCK := packaging/requirements/develop.lock
# Tests and compilers share the machine: as many at once as it has CPUs for us.
JOBS := $(shell nproc)

NATIVE_SOURCES := $(shell find native -type f) pyproject.toml packaging/bootstrap/build.py packaging/bootstrap/fetch_llama.py
# The editable installation remembers what is a package: a module that became one wants a new installation.
PACKAGES := $(shell find stratad planner -name __init__.py)

.DELETE_ON_ERROR:
.PHONY: setup demo test test-upstream test-vulkan gpu-check soak lint bench bench-ci bench-peers bench-serving lab lab-ci deb clean

GPU_STAMP := $(VENV)/.gpu-$(GPU)-$(subst ;,+,$(CUDA_ARCHITECTURES))

setup: $(VENV)/.built $(GPU_STAMP)

$(VENV)/.installed: $(LOCK) packaging/bootstrap/system_packages.sh
	@sh packaging/bootstrap/system_packages.sh $(PYTHON)
	@echo "installing Python packages into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCK)
	@touch $@

# The flags are part of the name: another NATIVE is another build.
$(VENV)/.built: $(VENV)/.installed $(VENV)/.native-$(NATIVE) $(NATIVE_SOURCES) $(PACKAGES)
	@source=$$($(BIN)/python packaging/bootstrap/fetch_llama.py) && \
	  $(BIN)/python packaging/bootstrap/build.py "$$source" -DSTRATAD_NATIVE=$(NATIVE)
	@touch $@

$(VENV)/.native-$(NATIVE): $(VENV)/.installed
	@rm -f $(VENV)/.native-*
	@touch $@

# After the package: its libraries are what the module is loaded beside.
$(GPU_STAMP): $(VENV)/.built packaging/bootstrap/gpu_module.py
	@source=$$($(BIN)/python packaging/bootstrap/fetch_llama.py) && \
	  $(BIN)/python packaging/bootstrap/gpu_module.py "$$source" $(GPU) --cuda-architectures "$(CUDA_ARCHITECTURES)"
	@rm -f $(VENV)/.gpu-*
	@touch $@

demo: setup
	@$(BIN)/python -m stratad.demo

test: setup
	@$(BIN)/python packaging/bootstrap/fetch_prometheus.py
	@sh packaging/bootstrap/test_packages.sh
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Upstream's own tests of every operation, against our device. `make test-upstream CASES=--all` takes hours.
CASES ?=
test-upstream: setup
	@$(BIN)/python -m tests.upstream $(CASES)

SECONDS ?= 300
soak: setup
	@$(BIN)/python -m tests.soak $(SECONDS)

# ggml's Vulkan module on Mesa's software device; apart from `make test` for the minutes it compiles the first time.
test-vulkan: setup
	@sh packaging/bootstrap/system_packages.sh $(PYTHON) vulkan
	@source=$$($(BIN)/python packaging/bootstrap/fetch_llama.py) && \
	  nice -n 10 $(BIN)/python packaging/bootstrap/gpu_module.py "$$source" vulkan --build-only
	@$(BIN)/python -m pytest -v -o python_files='vulkan_*.py' tests/gpu

# `make gpu-check DEVICE=vulkan` goes through the same steps on the software device; its speeds mean nothing.
DEVICE ?= cuda
MODULE ?=
gpu-check: setup
	@$(BIN)/python -m tests.gpu.check --device $(DEVICE) --cuda-architectures "$(CUDA_ARCHITECTURES)" $(if $(MODULE),--module $(MODULE))

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m tests.docs.links
	@find native tests -name '*.[ch]pp' | xargs $(BIN)/clang-format --dry-run --Werror

bench: setup
	@$(BIN)/python -m tests.bench

# MARGIN=0.15 fails only for a bar that is missed by more than 15 %, and that no round reached.
MARGIN ?= 0
bench-ci: setup
	@$(BIN)/python -m tests.bench --ci --margin $(MARGIN)

bench-peers: setup
	@$(BIN)/python -m tests.bench.peers

bench-serving: setup
	@$(BIN)/python -m tests.bench.serving

# Virtual machines with two nodes and more under real systemd: docs/LAB.md. `make lab SCENARIOS=tests/lab/scenario_x.py`
SCENARIOS ?= tests/lab
lab: setup
	@$(BIN)/python -m pytest -v -s -o python_files='scenario_*.py' $(SCENARIOS)

# The same for .ci/run: a scenario that failed gets a second try.
lab-ci: setup
	@$(BIN)/python -m tests.lab.ci

# build/deb/stratad_*.deb, for the AVX2 baseline.
deb: setup
	@$(BIN)/python packaging/debian/build.py "$${XDG_CACHE_HOME:-$$HOME/.cache}/stratad/lab"

clean:
	rm -rf build $(VENV)
