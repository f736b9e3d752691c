// Sensors of a GPU: its clock, power, temperature, what slows it down, and the errors that its memory has had. NVML
// reads them, the driver's library libnvidia-ml.so.1, which is loaded at run time: a program without it runs all the
// same.
#pragma once

#include <cstdint>
#include <string>

class GpuSensors {
 public:
  // The readings of one moment. A number that the GPU does not tell is -1. Ranks send this struct to each other as it
  // is.
  struct Reading {
    int32_t mhz = -1, most_mhz = -1;  // the multiprocessors' clock, and the highest one
    int32_t watts = -1, most_watts = -1;
    int32_t celsius = -1;
    int32_t reasons = -1;                        // why the clock is not higher, as NVML's bits
    int64_t corrected = -1, not_corrected = -1;  // errors of the memory (ECC) since the driver was loaded

    bool any() const { return mhz >= 0 || watts >= 0 || celsius >= 0; }
    // "1200 of 1980 MHz, 420 of 700 W, 84 °C, throttled: SW Thermal Slowdown, 12 corrected and 0 other memory errors";
    // what is not known is left out.
    std::string text() const;
    // "SW Power Cap, HW Slowdown": the reasons in words; "" if there is none but that it has nothing to do.
    std::string reasons_text() const;
  };

  // Loads the library, and asks for the GPU with this UUID ("GPU-8a6e…").
  explicit GpuSensors(const std::string& uuid);
  ~GpuSensors();
  GpuSensors(const GpuSensors&) = delete;

  // Returns why nothing can be read; "" if something can.
  const std::string& missing() const { return missing_; }
  Reading read() const;

 private:
  void* library_ = nullptr;
  void* gpu_ = nullptr;  // NVML's handle
  std::string missing_;
};
