#include "llmc/device/gpu_sensors.h"

#include <dlfcn.h>

#include <utility>

#include "llmc/base/error.h"

namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

// NVML's functions return 0 if they have done what they were asked. Those that a library lacks, or that a GPU does not
// support, leave the number as it was.
using Result = int;
template <class... Arguments>
bool call(void* library, const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<Result (*)(Arguments...)>(dlsym(library, name));
  return function && function(arguments...) == 0;
}

// NVML's numbers (nvml.h).
constexpr int kMultiprocessorClock = 1, kGpuTemperature = 0;
enum Errors { corrected = 0, not_corrected = 1 };
constexpr int kSinceTheDriverWasLoaded = 0;
// The reasons that keep the clock down, in the words of nvidia-smi. Bit 0 says that the GPU has nothing to do, and is
// left out.
constexpr std::pair<int, const char*> kReasons[] = {
    {0x2, "Applications Clocks Setting"},
    {0x4, "SW Power Cap"},
    {0x8, "HW Slowdown"},
    {0x10, "Sync Boost"},
    {0x20, "SW Thermal Slowdown"},
    {0x40, "HW Thermal Slowdown"},
    {0x80, "HW Power Brake Slowdown"},
    {0x100, "Display Clock Setting"},
};

unsigned number(void* library, const char* name, void* gpu, int which) {
  unsigned value = 0;
  return call(library, name, gpu, which, &value) ? value : ~0U;
}

}  // namespace

GpuSensors::GpuSensors(const std::string& uuid) : library_(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
  if (!library_) missing_ = std::string(kLibrary) + ", which the driver has, cannot be loaded";
  else if (!call(library_, "nvmlInit_v2")) missing_ = std::string(kLibrary) + " does not start";
  else if (!call(library_, "nvmlDeviceGetHandleByUUID", uuid.c_str(), &gpu_))
    missing_ = std::string(kLibrary) + " does not know the GPU " + (uuid.empty() ? "without a UUID" : uuid);
}

GpuSensors::~GpuSensors() {
  if (!library_) return;
  call(library_, "nvmlShutdown");
  dlclose(library_);
}

GpuSensors::Reading GpuSensors::read() const {
  Reading r;
  if (!gpu_) return r;
  r.mhz = int32_t(number(library_, "nvmlDeviceGetClockInfo", gpu_, kMultiprocessorClock));
  r.most_mhz = int32_t(number(library_, "nvmlDeviceGetMaxClockInfo", gpu_, kMultiprocessorClock));
  r.celsius = int32_t(number(library_, "nvmlDeviceGetTemperature", gpu_, kGpuTemperature));
  unsigned milliwatts = 0;
  if (call(library_, "nvmlDeviceGetPowerUsage", gpu_, &milliwatts)) r.watts = int32_t(milliwatts / 1000);
  if (call(library_, "nvmlDeviceGetEnforcedPowerLimit", gpu_, &milliwatts)) r.most_watts = int32_t(milliwatts / 1000);
  unsigned long long bits = 0;  // the function has a new name since CUDA 12.2
  if (call(library_, "nvmlDeviceGetCurrentClocksEventReasons", gpu_, &bits) ||
      call(library_, "nvmlDeviceGetCurrentClocksThrottleReasons", gpu_, &bits))
    r.reasons = int32_t(bits);
  unsigned long long errors = 0;
  if (call(library_, "nvmlDeviceGetTotalEccErrors", gpu_, int(corrected), kSinceTheDriverWasLoaded, &errors))
    r.corrected = int64_t(errors);
  if (call(library_, "nvmlDeviceGetTotalEccErrors", gpu_, int(not_corrected), kSinceTheDriverWasLoaded, &errors))
    r.not_corrected = int64_t(errors);
  return r;
}

std::string GpuSensors::Reading::reasons_text() const {
  std::string text;
  for (const auto& [bit, reason] : kReasons)
    if (reasons > 0 && reasons & bit) text += (text.empty() ? "" : ", ") + std::string(reason);
  return text;
}

std::string GpuSensors::Reading::text() const {
  std::string text;
  const auto add = [&text](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  const auto of_most = [&add](int value, int most, const char* unit) {
    if (value < 0) return;
    add(most < 0 ? format("%d %s", value, unit) : format("%d of %d %s", value, most, unit));
  };
  of_most(mhz, most_mhz, "MHz");
  of_most(watts, most_watts, "W");
  of_most(celsius, -1, "°C");
  if (const std::string why = reasons_text(); !why.empty()) add("throttled: " + why);
  if (corrected >= 0 && not_corrected >= 0)
    add(format("%lld corrected and %lld other memory errors", (long long)corrected, (long long)not_corrected));
  return text;
}
