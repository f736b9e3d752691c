// These rules say what cuBLASLt supports, as NVIDIA documents it. The library refuses everything else, and so do they.
#pragma once

#include <string>

#include "dev/softgpu/cublaslt/product.h"

namespace softgpu {

// Returns "" if this GPU computes such a product, else the rule that it breaks. `capability`: 90 for 9.0.
std::string unsupported(const Operation& operation, const Layout& a, const Layout& b, const Layout& c, const Layout& d,
                        int capability);

}  // namespace softgpu
