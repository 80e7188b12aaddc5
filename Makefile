# Each target works from a fresh clone with Python 3.11+, pip and make, and writes only inside
# the clone. `make` alone lists the targets.

.DEFAULT_GOAL := help
.SUFFIXES:
# Two set-ups at once would write into the same environment, so `make -j` changes nothing.
.NOTPARALLEL:

ARGS ?=
WORKERS ?= 2

# Caches and temporary files stay in the clone.
cache := $(CURDIR)/.cache
export HYPOTHESIS_STORAGE_DIRECTORY := $(cache)/hypothesis
export MPLCONFIGDIR := $(cache)/matplotlib
export PACPFL_CACHE_DIR := $(cache)/jax
export PIP_CACHE_DIR := $(cache)/pip
export PYTEST_DEBUG_TEMPROOT := $(cache)/tmp
export PYTHONPYCACHEPREFIX := $(cache)/pycache
export TMPDIR := $(cache)/tmp
export UV_CACHE_DIR := $(cache)/uv
export XDG_CACHE_HOME := $(cache)/xdg

# What the caller has set for other projects must not reach this one. Without bytecode, which lies in
# the cache, every process spends 8 s compiling what it imports instead of 3 s.
export PIP_USER := 0
export PYTHONNOUSERSITE := 1
export UV_PYTHON_DOWNLOADS := never
unexport PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE

# Programs that insist on a home folder (browsers do) get one in the clone. The set-up keeps the
# real one, where the settings of pip and uv are.
at_home := HOME="$$PWD/.cache/home" XDG_CONFIG_HOME="$$PWD/.cache/home/.config"
python := $(at_home) .venv/bin/python

# The browser in the tests puts a socket into TMPDIR, and a socket's path may have about 100
# characters: for a clone that lies deep it takes the system's folder.
tmpdir_for_sockets := $(shell test $$(pwd | wc -c) -le 46 || echo env -u TMPDIR)

folders := .cache/tmp .cache/home
$(folders):
	@mkdir -p $@

# One stamp per extra, so that the demonstration installs the core alone.
stamps := $(patsubst %,.venv/ready-%,core test check bench docs)
$(stamps): .venv/ready-%: pyproject.toml constraints.txt scripts/install | $(folders)
	@sh scripts/install $*
	@touch .venv/ready-core $@

.venv-sites/ready-sites: pyproject.toml constraints.txt scripts/install | $(folders)
	@sh scripts/install sites
	@touch $@

# A clone that was moved or copied must not go on running the code of the old place.
ifneq ($(shell cat .venv/place 2>/dev/null),$(CURDIR))
.PHONY: $(stamps)
endif
ifneq ($(shell cat .venv-sites/place 2>/dev/null),$(CURDIR))
.PHONY: .venv-sites/ready-sites
endif

.PHONY: help demo demo-sites test test-as-users golden test-sites check bench bench-sites reproduce docs notebooks clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

demo: .venv/ready-core | $(folders) ## Set up, train on the Polynomial data, write a report
	@$(at_home) .venv/bin/pacpfl run polynomial --out runs/demo $(ARGS)
	@printf 'The report is %s\n' "$$PWD/runs/demo/report.html"

# A core and a thread for each worker: more threads wait for one another by counting, which takes the
# other worker's time. Files go to the workers in the order of tests/conftest.py.
test: .venv/ready-test | $(folders) ## Set up and run all tests (ARGS="-k gp" for some, WORKERS=2)
	@$(tmpdir_for_sockets) JAX_PLATFORMS=cpu OPENBLAS_NUM_THREADS=1 CORE_FOR_EACH_WORKER=1 $(python) -m pytest \
		-n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# The suite compiles for speed of compilation, with other passes of XLA than users have. These compile as
# they do: what every method and every prior promises, and the engine's training. Three minutes.
as_users := tests/contracts/test_methods.py tests/contracts/test_priors.py tests/priors/test_kernels.py \
	tests/engine/test_simulate.py
test-as-users: .venv/ready-test | $(folders) ## Test engine, priors and methods with XLA as users have it
	@$(tmpdir_for_sockets) PACPFL_TEST_AS_USERS=1 JAX_PLATFORMS=cpu OPENBLAS_NUM_THREADS=1 CORE_FOR_EACH_WORKER=1 \
		$(python) -m pytest -n $(WORKERS) --dist loadfile $(as_users) $(ARGS)

golden: .venv/ready-test | $(folders) ## Store the numbers and the pages of the golden runs again, and show what changed
	@JAX_PLATFORMS=cpu OPENBLAS_NUM_THREADS=1 JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(python) tests/golden/play.py tests/golden/numbers.json
	@PACPFL_GOLDEN=write JAX_PLATFORMS=cpu $(python) -m pytest -q tests/report/test_golden_pages.py
	@git --no-pager diff --stat -- tests/golden

# A deployment for each worker: a test waits much, for processes to start and to miss each other.
test-sites: .venv-sites/ready-sites | $(folders) ## Set up with NVIDIA FLARE and test real sites on this machine
	@JAX_PLATFORMS=cpu OPENBLAS_NUM_THREADS=1 $(at_home) .venv-sites/bin/python -m pytest tests/sites \
		-n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

demo-sites: .venv-sites/ready-sites | $(folders) ## The demonstration with a server and three sites, each a process
	@JAX_PLATFORMS=cpu $(at_home) .venv-sites/bin/python scripts/demo_sites.py $(ARGS)

check: .venv/ready-check | $(folders) ## Lint, formatting and types
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(python) -m mypy

bench: .venv/ready-bench | $(folders) ## Set up with PyTorch and GPyTorch and measure against them
	@$(python) -m benchmarks $(ARGS)

bench-sites: .venv-sites/ready-sites | $(folders) ## Measure a training across sites, each a process
	@JAX_PLATFORMS=cpu $(at_home) .venv-sites/bin/python -m benchmarks.sites $(ARGS)

reproduce: .venv/ready-test | $(folders) ## Set up and reproduce a study of the paper (STUDY=regression, ARGS="--quick")
	@$(python) -m reproduction $(STUDY) $(ARGS)

# The theme's makers announce its successor at every build; that is no matter of this site.
docs: .venv/ready-docs | $(folders) ## Set up and build the documentation, a site that needs no network
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --quiet --strict $(ARGS)
	@printf 'The site is %s\n' "$$PWD/site/index.html"

notebooks: .venv/ready-test | $(folders) ## Run the notebooks of the documentation again (ARGS="pv" for one)
	@JAX_PLATFORMS=cpu $(python) scripts/notebooks.py $(ARGS)

clean: ## Remove the environment, the caches, the site and the demonstration; other runs stay
	rm -rf .venv .venv-sites .cache dist site runs/demo runs/demo-sites
