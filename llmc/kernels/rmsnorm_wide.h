// RMSNorm with one block of threads per row, for devices that need many loads in flight (DeviceInfo::wide_rows) and
// rows of 1024 to 8192 elements, a multiple of 8. Every input is read once and stays in registers until its row's sum
// is known. rmsnorm.h calls these functions and has checked all arguments.
#pragma once

#include "llmc/kernels/rmsnorm.h"

// Returns true if these functions process rows of C elements on this device.
bool takes_rmsnorm_wide(const DeviceInfo& device, int C);

// With `add`: sum = x + b, and the norm is that of `sum`, which may be x. Without: the norm of x; sum and b are unused.
template <class T, bool add>
void rmsnorm_wide_forward(Stream& stream, const char* name, T* sum, T* y, float* rstd, const T* x, const T* b,
                          const T* w, int N, int C, float eps, float* amax);

// Adds to dx, and writes scratch[block, C], each block's share of dw: the sum over `rows` rows. Raises *amax unless it
// is null.
template <class T>
void rmsnorm_wide_backward(Stream& stream, T* dx, float* scratch, const T* dy, const T* x, const T* w,
                           const float* rstd, int N, int C, int rows, float* amax);
