# Every target makes its own environment first; all it needs is Python 3.11 or newer with venv.

VENV := .venv
OLDEST := .venv-oldest
BIN := $(VENV)/bin
DEMO ?= demo
EXTRAS := dev,docs

# Files of tests run side by side, with one thread each, in the order of their names: by default those with the fewest
# tests come last, which are the longest here, and one process would end minutes after the others. One process more than
# there are cores, since many tests wait for processes that they have started.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist=loadfile --no-loadscope-reorder --maxprocesses=4 \
	--numprocesses=$$(($$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 1))

# Threads that wait for one another give up their core; else training on a busy machine takes several times as long.
OMP_WAIT_POLICY ?= PASSIVE
export OMP_WAIT_POLICY

# Images of containers set this one, with which each Python compiles MONAI and PyTorch anew, for ten seconds.
unexport PYTHONDONTWRITEBYTECODE

# The first Python that is new enough and can make environments.
PYTHON ?= $(firstword $(foreach python,python3.11 python3.12 python3.13 python3,$(shell \
	$(python) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(python))))

# MONAI warns before it runs a config, since a config is code; the one of the demo is in this repository.
BUNDLE := PYTHONWARNINGS="ignore:parsing config_file" $(BIN)/python -m monai.bundle run \
	--meta_file bundles/phantom/configs/metadata.json --logging_file bundles/phantom/configs/logging.conf \
	--bundle_root bundles/phantom --output_dir "$(DEMO)" --ckpt_dir "$(DEMO)/models" --dataset_dir "$(DEMO)/data"

# $(call make_venv,folder,pip arguments): the stamp goes first and comes last, so that what was interrupted starts afresh.
# Python compiles what it imports; pip would compile all 16,000 files.
define make_venv
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed; make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Installing into $(1); the first time takes some minutes."
	if test -e $@; then rm $@; else "$(PYTHON)" -m venv --clear $(1); fi
	$(1)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check $(2)
	@touch $@
endef

.PHONY: help demo test test-real types docs benchmark fuzz mutants endurance test-oldest wheel clean

help:
	@echo "make demo         correct noisy labels of generated images; results in $(DEMO)/"
	@echo "make test         every check: ruff, mypy, the tests, and the docs"
	@echo "make test-real    the tests on real data, in the folder that MONAI_SC_DATA names"
	@echo "make docs         the documentation, in docs/_build/html/"
	@echo "make benchmark    time the package against slow versions of the same"
	@echo "make fuzz         over 10,000 inputs of all kinds: each gives a right result or one sentence"
	@echo "make mutants      would the tests notice changes of the code? FILES=... SAMPLE=25"
	@echo "make endurance    an hour of kills, damaged files and full disks: is anything lost? MINUTES=60"
	@echo "make test-oldest  the tests with the oldest versions that pyproject.toml allows"
	@echo "make wheel        build sdist and wheel, and run bundles, commands and docs with the wheel alone"
	@echo "make clean        delete what these commands made"

$(VENV)/installed: pyproject.toml .ci/constraints.txt
	$(call make_venv,$(VENV),-c .ci/constraints.txt -e ".[$(EXTRAS)]")

$(OLDEST)/installed: pyproject.toml .ci/constraints.txt .ci/oldest.py
	@mkdir -p build
	"$(PYTHON)" .ci/oldest.py > build/oldest.txt
	$(call make_venv,$(OLDEST),-c .ci/constraints.txt -c build/oldest.txt -e ".[dev]")

# Only a folder that an earlier demo made is wiped.
demo: $(VENV)/installed
	@test ! -e "$(DEMO)" || test -e "$(DEMO)/.demo" || { echo "$(DEMO) exists, and no demo made it." >&2; exit 1; }
	rm -rf "$(DEMO)"
	@mkdir -p "$(DEMO)" && touch "$(DEMO)/.demo"
	$(BUNDLE) --config_file "['bundles/phantom/configs/train.json','bundles/phantom/configs/reference.json']"
	$(BUNDLE) --config_file bundles/phantom/configs/train.json

test: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(MAKE) --jobs=2 types docs
	$(PYTEST) -m "not realdata"

REAL ?= realdata
test-real: $(VENV)/installed
	$(PYTEST) -m "$(REAL)" tests/real

types: $(VENV)/installed
	$(BIN)/mypy

docs: $(VENV)/installed
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going docs docs/_build/html

benchmark: $(VENV)/installed
	$(BIN)/python tests/benchmarks/run.py

# The tests try a few hundred inputs, this over 10,000, and counts them.
fuzz: $(VENV)/installed
	MONAI_SC_FUZZ=600 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/fuzz

# Without FILES, all of monai_sc/functional.
SAMPLE ?= 25
mutants: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e ".[mutation]"
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutation/run.py --sample $(SAMPLE) $(FILES)

MINUTES ?= 60
endurance: $(VENV)/installed
	rm -rf build/endurance
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/endurance.py --minutes $(MINUTES) --out build/endurance

# Old releases warn about newer Pythons and one another, so warnings are no errors here.
test-oldest: $(OLDEST)/installed
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile -m "not realdata" \
		-W default

# The tests are copied to a folder without the package, so that they find the one that is installed.
WHEEL := build/wheel
wheel:
	rm -rf $(WHEEL) build/lib dist && mkdir -p $(WHEEL)
	"$(PYTHON)" -m venv $(WHEEL)/venv
	$(WHEEL)/venv/bin/python -m pip install --quiet --disable-pip-version-check build
	$(WHEEL)/venv/bin/python -m build --outdir dist .
	$(WHEEL)/venv/bin/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt \
		"$$(ls dist/*.whl)[dev]"
	cp -R bundles docs tests README.md CONTRIBUTING.md pyproject.toml $(WHEEL)
	cd $(WHEEL) && OMP_NUM_THREADS=1 venv/bin/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile \
		tests/bundles tests/commands tests/docs/test_docs.py tests/test_package.py

clean:
	rm -rf $(VENV) $(OLDEST) build dist docs/_build .mypy_cache .pytest_cache .ruff_cache *.egg-info
	@test ! -e "$(DEMO)/.demo" || rm -rf "$(DEMO)"
