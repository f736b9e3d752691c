# How the CUDA build is made for the software GPU: its objects hold PTX, and its programs link with the stand-ins for
# CUDA's libraries. SOFTGPU=ptx is all that the software GPU needs; SOFTGPU=machine-code compiles the PTX further, too,
# as ptxas does for a GPU: it must accept it.

code_of = $(if $(filter machine-code,$(SOFTGPU)),[sm_$1$(comma)compute_$1],compute_$1)
NVCC += --no-compress

S := dev/softgpu
SOFTGPU_LIB := $B/lib
# The CPU backend's libraries are those that DEVICE=cpu is configured with.
CPU_CONFIGURATION := build/$(shell DEVICE=cpu scripts/doctor configure)/config.mk
ifeq ($(wildcard $(CPU_CONFIGURATION)),)
  $(error The software GPU needs the CPU build's libraries: make doctor DEVICE=cpu says what is missing)
endif
cpu_setting = $(shell sed -n 's/^$1 := //p' $(CPU_CONFIGURATION))
STAND_IN_FLAGS := -std=c++20 -g1 -fPIC -fvisibility=hidden -march=native -pthread $(WARNINGS) -Wno-unknown-pragmas \
  -Wno-missing-field-initializers -I. $(call cpu_setting,INCLUDES) $(filter-out -DLLMC_DEVICE%,$(INCLUDES)) \
  -DLLMC_DEVICE_CPU=1
# What the software GPU shares with the CPU backend: fibers, barriers, warps, mbarriers, wgmma.
SHARED_SOURCES := $(addprefix llmc/device/cpu_,$(addsuffix .cpp,backend block rendezvous memory_fault hopper async_proxy mbarriers warpgroups product)) \
  llmc/device/thread_pool.cpp llmc/base/text.cpp llmc/base/utf8.cpp
CUDART_SOURCES := $(wildcard $S/*.cpp $S/runtime/*.cpp) $(SHARED_SOURCES)
link_stand_in = @mkdir -p $(@D) && $(CXX) -shared -pthread $(STAND_IN_SANITIZER) -Wl,-Bsymbolic,--no-undefined,--as-needed,-soname,$(@F) $^ \
  $(call cpu_setting,LIBS) -ldl -Wl,-rpath,'$$ORIGIN' -o $@
# A kernel that another translator wrote is not taken from the cache.
TRANSLATOR := $(addprefix $S/,translate ptx.py opcodes.py emit.py arithmetic.h memory.h kernel.h)

CUBLASLT_SOURCES := $(wildcard $S/cublaslt/*.cpp) llmc/base/text.cpp llmc/base/utf8.cpp
NCCL_SOURCES := $(wildcard $S/nccl/*.cpp)

define stand_ins # (the folder, the sanitizer)
$1/stand-in/%.cpp.o: %.cpp $S/rules.mk
	$$(if $$Q,@echo "  compile $$<" && mkdir -p $$(@D),mkdir -p $$(@D))
	$$Q$$(CXX) $$(STAND_IN_FLAGS) $$(STAND_IN_SANITIZER) $$(if $$(filter llmc/%,$$<),-O3 -fno-math-errno -fno-trapping-math,-O1) -MMD -MP -c $$< -o $$@
$1/stand-in/$S/runtime/modules.cpp.o: $(TRANSLATOR)
$1/stand-in/$S/runtime/modules.cpp.o: STAND_IN_FLAGS += -DSOFTGPU_SANITIZER='"$2"' -DSOFTGPU_TREE='"$(shell realpath -m --relative-to=$1/lib .)"' \
  -DSOFTGPU_TOOLS='"$(shell cat $(TRANSLATOR) | cksum) $2"'
$1/lib/libcudart.so: $(CUDART_SOURCES:%=$1/stand-in/%.o)
	$$(link_stand_in)
$1/lib/libcublasLt.so: $(CUBLASLT_SOURCES:%=$1/stand-in/%.o) $1/lib/libcudart.so
	$$(link_stand_in)
$1/lib/libnccl.so: $(NCCL_SOURCES:%=$1/stand-in/%.o) $1/lib/libcudart.so
	$$(link_stand_in)
endef
$(eval $(call stand_ins,$B))

# Programs of the CUDA build, with these in the place of CUDA's libraries. They lie in $B or in a folder there. No path in
# the build is absolute, so that a copy of the tree can go on with a copy of its build.
SOFTGPU_RPATH := -Wl,-rpath,'$$ORIGIN/lib:$$ORIGIN/../lib'
STAND_INS := $(addprefix $(SOFTGPU_LIB)/lib,$(addsuffix .so,cudart cublasLt nccl))
LIBS := $(filter-out %libcublasLt.so %libcudart_static.a %libcudart.so %libnccl.so -Wl$(comma)-rpath$(comma)%,$(LIBS)) \
  $(STAND_INS) $(SOFTGPU_RPATH)

# Programs of its own tests (dev/test/softgpu).
SOFTGPU_TESTS := $(addprefix $B/softgpu/,run_kernel mistakes communicators bounded_wait)
$B/softgpu/run_kernel: $B/stand-in/dev/test/softgpu/run_kernel.cpp.o $(STAND_INS)
$B/softgpu/mistakes: $B/obj/dev/test/softgpu/mistakes.cu.o $(STAND_INS)
$B/softgpu/communicators: $B/obj/dev/test/softgpu/communicators.cpp.o $(STAND_INS)
$B/softgpu/bounded_wait: $B/obj/dev/test/softgpu/bounded_wait.cu.o $B/libkernels.a $(STAND_INS)
$(SOFTGPU_TESTS):
	@mkdir -p $(@D)
	$Q$(LINK) -rdynamic $(filter %.o %.a,$^) $(LIBS) -o $@

# Under ThreadSanitizer: the checks of kernels, of the same objects, with stand-ins and translated kernels that it sees.
UNDER_TSAN := $B/thread
$(eval $(call stand_ins,$(UNDER_TSAN),-fsanitize=thread))
$(UNDER_TSAN)/%: STAND_IN_SANITIZER := -fsanitize=thread
$(patsubst %,$(UNDER_TSAN)/stand-in/%.o,$(FIBERS) $S/executor.cpp $S/units.cpp): STAND_IN_SANITIZER := -DLLMC_TSAN=1
$(UNDER_TSAN)/kernels/%: $B/obj/dev/kernels/%.cu.o $B/libkernels.a $(STAND_INS:$B/%=$(UNDER_TSAN)/%) | $(BUILD_OBJECT)
	@mkdir -p $(@D)
	$Q$(LINK) $(STAND_IN_SANITIZER) $< $(BUILD_OBJECT) $B/libkernels.a $(subst $(SOFTGPU_LIB),$(UNDER_TSAN)/lib,$(LIBS)) -o $@
