// The device's tensors, as seen from the host.
#pragma once

#include <ATen/core/Tensor.h>

namespace emu {

inline const c10::Device THE_DEVICE(c10::DeviceType::PrivateUse1, 0);

// The same memory as a tensor of the CPU, kept alive by it. Only a stream's operations may touch its numbers.
at::Tensor on_host(const at::Tensor& tensor);

} // namespace emu
