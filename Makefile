# make setup   builds .venv: the pinned development environment and Litz itself
# make demo    compiles a few models and prints a table against eager and inductor
# make test    lint and all tests
# make test-ops   every operator of torch's own database, every sample, all types, against eager (hours); SWEEP="--dtype float32" for a part
# make fuzz    random programs against eager, 5,000 of them; FUZZ="--programs 100 --seed 7" for others
# make test-ecosystem   transformers' Trainer and generate, diffusers, PyG, PEFT, Lightning, DDP, each against eager
# make test-page   the page of `litz explain` in a browser: needs Chromium and its driver (apt-get install chromium chromium-driver)
# make bench-explain   how long the page takes to make, against the compile
# make test-gpu   what is compiled for a GPU, run on one
# make test-gpu-ops   the operators of torch's own database on a GPU, by many processes; OPS="--seconds 520 --resume" for a part, and the next
# make docs    writes docs/OPERATORS.md
# make bench   the full table, also written to benchmarks/results.json
# make bench-training   the same for training, also written to benchmarks/training.json
# make bench-scaling   how each stage's time grows with the program; SCALING="chain woven" for some families of programs
# make bench-optimizers   steps of optimizers, compiled, against eager and inductor
# make bench-pieces   models that are run in many pieces, against eager and inductor
# make bench-lengths   training over twenty lengths: compiles, step time, memory and losses against eager
# make bench-second   the first call in a second process, against Dynamo alone and inductor; SECOND="--without-inductor" for the quick half
# make bench-from-c   ResNet-50 as a shared library, called from C, against the same in Python
# make bench-operators   operators called one by one, in eager mode, against torch's own kernels
# make bench-residency   memory after a thousand compiles and a reset
# make bench-memory   memory of training steps: foretold against measured, over twenty bounds, and under checkpoints; MEMORY="--only levels" for a part
# make bench-pareto   training steps at the peaks of PyTorch's activation_memory_budget, and how low Litz goes; PARETO="--layers 4 --tokens 512" for a part
# make bench-cut   the minimum cut of 50,000 nodes against networkx's, and how it and the whole compile grow; CUT="--without-compile" for a part
# make bench-gpu   models and kernels on a GPU, against eager and inductor, and the bars; GPU="--only kernels" for a part, GPU="--profile bert:training" for where a step's time goes
# make bench-gpu-cold   the first call on a GPU: where its seconds go, and in a second process
# make bench-named   ResNet-50 under torch.profiler: the part of a step that is in named events, and what that costs while no profiler is on
# make bench-latency   one short sequence on a GPU: CUDA graphs, and the host's time without, against eager and inductor
# make bench-inference   frozen inference against inductor, frozen and not, ONNX Runtime and OpenVINO, in float32 and bfloat16; what freezing adds to the first call; memory after discarding; INFERENCE="--only cold --models bert" for a part
# make bench-decode   a token at a time with a static key-value cache, against inductor and the machine's read bandwidth; generate() with each kind of cache; DECODE="--types float32" for a part
# make bench-int8   ResNet-50 and BERT quantised by PT2E, against inductor frozen, ONNX Runtime and Litz in float32; INT8="--how dynamic" for scales found at run time
# make bench-minify   twelve faults planted in Litz, each in a real model, made small by litz minify and by torch's minifier; MINIFY="--only nan-llama --without-torch" for a part
# make bench-models   many more models, inference and training, against eager; MODELS="--inductor" for inductor too

# Tests and benchmarks compile anew: what an earlier run has kept must not answer for the code of this one.
export LITZ_CACHE ?= 0

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.litz-ready

ECOSYSTEM := .venv-ecosystem
PEERS := .venv-peers

.PHONY: bench-inference bench-decode bench-int8 bench-pareto test-page bench-explain bench-named bench-cut bench-memory bench-minify setup demo test test-all test-gpu test-gpu-ops bench-gpu bench-gpu-cold bench-latency test-ecosystem test-ops fuzz docs bench bench-training bench-models bench-optimizers bench-scaling bench-pieces bench-lengths bench-second bench-residency bench-from-c bench-operators figures lint format

setup: $(READY)

# torch goes first and alone, so that no other requirement has a say in which build of it is chosen.
# Litz is installed without build isolation, with the pinned setuptools: nothing unpinned is fetched.
$(READY): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "The development environment needs Python 3.11 to 3.13; set PYTHON=... to choose one.")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet torch==2.13.0
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements-dev.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	touch $(READY)

# An environment of its own: these packages pin and pull what the development environment should not have.
$(ECOSYSTEM)/.litz-ready: requirements-dev.txt requirements-ecosystem.txt pyproject.toml
	test -x $(ECOSYSTEM)/bin/python || $(PYTHON) -m venv $(ECOSYSTEM)
	$(ECOSYSTEM)/bin/python -m pip install --disable-pip-version-check --quiet torch==2.13.0
	$(ECOSYSTEM)/bin/python -m pip install --disable-pip-version-check --quiet -r requirements-dev.txt -r requirements-ecosystem.txt
	$(ECOSYSTEM)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	touch $@

# Likewise: what inference is compared with.
$(PEERS)/.litz-ready: requirements-dev.txt requirements-peers.txt pyproject.toml
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet torch==2.13.0
	$(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet -r requirements-dev.txt -r requirements-peers.txt
	$(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	touch $@

demo: setup
	$(BIN)/python -m benchmarks.demo

bench: setup
	$(BIN)/python -m benchmarks.bench

bench-pareto: setup
	$(BIN)/python -m benchmarks.pareto $(PARETO)

bench-int8: $(PEERS)/.litz-ready
	$(PEERS)/bin/python -m benchmarks.int8 $(INT8)

bench-inference: $(PEERS)/.litz-ready
	$(PEERS)/bin/python -m benchmarks.inference $(INFERENCE)

bench-decode: $(PEERS)/.litz-ready
	$(PEERS)/bin/python -m benchmarks.decode $(DECODE)

bench-memory: setup
	$(BIN)/python -m benchmarks.memory $(MEMORY)

bench-cut: setup
	$(BIN)/python -m benchmarks.cut $(CUT)

bench-minify: setup
	$(BIN)/python -m benchmarks.minify $(MINIFY)

bench-gpu: setup
	$(BIN)/python -m benchmarks.gpu $(GPU)

bench-gpu-cold: setup
	$(BIN)/python -m benchmarks.gpu_cold $(GPU)

bench-named: setup
	$(BIN)/python -m benchmarks.named $(NAMED)

bench-latency: setup
	$(BIN)/python -m benchmarks.gpu_latency $(GPU)

test-gpu: setup
	$(BIN)/python -m pytest tests/gpu

test-gpu-ops: setup
	$(BIN)/python -m tests.opinfo.sweep --device cuda $(OPS)

bench-training: setup
	$(BIN)/python -m benchmarks.training

bench-scaling: setup
	$(BIN)/python -m benchmarks.scaling $(SCALING)

bench-optimizers: setup
	$(BIN)/python -m benchmarks.optimizers $(OPTIMIZERS)

bench-pieces: setup
	$(BIN)/python -m benchmarks.pieces

bench-lengths: setup
	$(BIN)/python -m benchmarks.lengths $(LENGTHS)

bench-second: setup
	$(BIN)/python -m benchmarks.second $(SECOND)

bench-from-c: setup
	$(BIN)/python -m benchmarks.from_c

bench-operators: setup
	$(BIN)/python -m benchmarks.one_by_one

bench-residency: setup
	$(BIN)/python -m benchmarks.residency

bench-models: setup
	$(BIN)/python -m benchmarks.models_more $(MODELS)

figures: setup
	$(BIN)/python -m benchmarks.figures

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

# What one runs while working. `test-all` adds the tests that walk the whole database of operators once more.
test: lint
	$(BIN)/python -m pytest tests -n 2 --dist worksteal -q --ignore=tests/ecosystem --ignore=tests/page -m "not long"

test-all: lint
	$(BIN)/python -m pytest tests -n 2 --dist worksteal -q --ignore=tests/ecosystem --ignore=tests/page

test-ecosystem: $(ECOSYSTEM)/.litz-ready
	$(ECOSYSTEM)/bin/python -m pytest tests/ecosystem -q

# What drives the browser lies beside the environment, and is none of its packages.
.page-tools: requirements-page.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --upgrade --target $@ -r requirements-page.txt
	touch $@

test-page: setup .page-tools
	PYTHONPATH=.page-tools $(BIN)/python -m pytest tests/page -q

bench-explain: setup
	$(BIN)/python -m benchmarks.explain

# Every sample of torch's operator database, for hours. SWEEP holds the sweep's options, such as
# SWEEP="--symbolic --dtype float32": one program over symbolic sizes for each sample, at three sizes; or SWEEP="--jvp":
# tangents by litz.jvp against those of torch.func.jvp.
test-ops: setup
	$(BIN)/python -m tests.opinfo.sweep $(SWEEP)

# Random programs. FUZZ holds the options, such as FUZZ="--symbolic --programs 5000" or FUZZ="--transforms".
fuzz: setup
	$(BIN)/python -m tests.fuzz.run $(FUZZ)

docs: setup
	$(BIN)/python -m litz.ops.coverage --markdown > docs/OPERATORS.md

format: setup
	$(BIN)/ruff format .
