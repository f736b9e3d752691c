// RMSNorm with one block of threads per row, for devices that need many loads in flight (DeviceInfo::wide_rows) and
// rows of 1024 to 8192 elements, a multiple of 8. Every input is read once and stays in registers until its row's sum
// is known. rmsnorm.h calls these functions and has checked all arguments.
#pragma once

#include <type_traits>

#include "llmc/device/device.h"
#include "llmc/kernels/rmsnorm.h"

// Returns true if these functions process rows of C elements on this device.
bool takes_rmsnorm_wide(const DeviceInfo& device, int C);

// A kernel adds nothing, or a second tensor b before the norm (add_rmsnorm_forward, where x is its a), or b behind it
// (rmsnorm_add_forward, where b is its a). It is an int as a template's argument, so that tools can print a kernel's
// name.
enum RmsnormAdd : int { kAddNothing, kAddBefore, kAddAfter };

// Calls body(std::integral_constant<int, add>{}).
template <class Body>
void with_rmsnorm_add(RmsnormAdd add, const Body& body) {
  if (add == kAddNothing) body(std::integral_constant<int, kAddNothing>{});
  else if (add == kAddBefore) body(std::integral_constant<int, kAddBefore>{});
  else body(std::integral_constant<int, kAddAfter>{});
}

// Both functions launch `work`, which declares all accesses.

// As the function of rmsnorm.h that adds so.
void rmsnorm_wide_forward(const Work& work, RmsnormAdd add, const Tensor& sum, const Tensor& y, const Tensor& rstd,
                          const Tensor& x, const Tensor& b, const Tensor& w, float eps, float* amax);

// As rmsnorm_backward, but leaves dw alone and writes part (blocks, C), the sums of dw over `rows` rows each.
void rmsnorm_wide_backward(const Work& work, const Tensor& dx, const Tensor& part, const Tensor& dy, const Tensor& x,
                           const Tensor& w, const Tensor& rstd, int rows, bool add, float* amax);
