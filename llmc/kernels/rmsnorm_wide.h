// RMSNorm with one block of threads per row, for devices that need many loads in flight (DeviceInfo::wide_rows) and
// rows of 1024 to 8192 elements, a multiple of 8. Every input is read once and stays in registers until its row's sum
// is known. rmsnorm.h calls these functions and has checked all arguments.
#pragma once

#include "llmc/device/device.h"
#include "llmc/kernels/rmsnorm.h"

// Returns true if these functions process rows of C elements on this device.
bool takes_rmsnorm_wide(const DeviceInfo& device, int C);

// Both functions launch `work`, which declares all accesses.

// As rmsnorm_forward, with b as add_rmsnorm_forward of a = x, or with a residual as rmsnorm_add_forward of b = x.
void rmsnorm_wide_forward(const Work& work, const Tensor& sum, const Tensor& y, const Tensor& rstd, const Tensor& x,
                          const Tensor& b, const Tensor& w, const Tensor& residual, float eps, float* amax);

// As rmsnorm_backward, but leaves dw alone and writes part (blocks, C), the sums of dw over `rows` rows each.
void rmsnorm_wide_backward(const Work& work, const Tensor& dx, const Tensor& part, const Tensor& dy, const Tensor& x,
                           const Tensor& w, const Tensor& rstd, int rows, bool add, float* amax);
