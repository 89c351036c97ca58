// torch's device of one's own (PrivateUse1): memory, streams and events for autograd, and every operator.
//
// An operator's result is described at once, by its meta kernel, and computed later, in the current stream, by its CPU
// kernel. What depends on numbers (`item`, `nonzero`), or has no meta kernel, waits for the stream first.

#include "tensors.h"

#include "device.h"
#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace emu {

namespace {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;

// Memory ------------------------------------------------------------------------------------------------------------

// What is launched keeps the block, not the storage, which FSDP resizes to nothing once it has launched what needs it.
// Its place on the device is free at once, as in the order of one stream it may be used again.
struct Held {
  std::shared_ptr<void> block;
  size_t address;
};

void release(void* held) {
  auto* memory = static_cast<Held*>(held);
  if (memory->address != 0) {
    space().give_back(memory->address);
  }
  delete memory;
}

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = nullptr;
    size_t address = 0;
    if (size > 0) {
      address = space().take(size, Device::get().current().id);
      TORCH_CHECK(posix_memalign(&data, 64, size) == 0, "CUDA out of memory.");
    }
    return {data, new Held{{data, &std::free}, address}, &release, THE_DEVICE};
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {
    space().release_unused();
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    return space().stats();
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {
    space().reset_sums();
  }
  void resetPeakStats(c10::DeviceIndex) override {
    space().reset_peaks();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return space().info();
  }
};

Memory memory;
REGISTER_ALLOCATOR(TYPE, &memory);

// The host's, from which and into which the device copies without the host waiting.
struct Pinned final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, 64, std::max<size_t>(size, 1)) == 0, "CUDA out of memory.");
    std::lock_guard lock(mutex);
    blocks[data] = size;
    return {data, data, &forget, c10::DeviceType::CPU};
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
  static bool holds(const void* data) {
    std::lock_guard lock(mutex);
    auto next = blocks.upper_bound(const_cast<void*>(data));
    if (next == blocks.begin()) {
      return false;
    }
    --next;
    return static_cast<const char*>(data) < static_cast<const char*>(next->first) + next->second;
  }
  static void forget(void* data) {
    std::lock_guard lock(mutex);
    blocks.erase(data);
    std::free(data);
  }
  static inline std::mutex mutex;
  static inline std::map<void*, size_t> blocks;
};

Pinned pinned;

// Streams and events for autograd and futures -----------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return TYPE;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return THE_DEVICE;
  }
  c10::Device getDevice() const override {
    return THE_DEVICE;
  }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }

  static c10::Stream stream_of(int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, THE_DEVICE, id);
  }
  c10::Stream getStream(c10::Device) const override {
    return stream_of(Device::get().current().id);
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return stream_of(0);
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return stream_of(Device::get().new_stream().id);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream_of(Device::get().new_stream().id);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(Device::get().exchange_current(stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return Device::get().stream(stream.id()).query();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Device::get().stream(stream.id()).synchronize();
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    Device::get().synchronize();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Event();
    }
    static_cast<Event*>(*event)->record(Device::get().stream(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      static_cast<Event*>(event)->block(Device::get().stream(stream.id()));
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->query();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      static_cast<Event*>(event)->synchronize();
    }
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* one, void* other, const c10::DeviceIndex) const override {
    return 1000 * (static_cast<Event*>(other)->reached_s() - static_cast<Event*>(one)->reached_s());
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void resize_storage(const c10::Storage& storage, size_t size) {
  auto data = memory.allocate(size);
  if (const size_t kept = std::min(size, storage.nbytes())) {
    Device::get().synchronize();
    std::memcpy(data.get(), storage.data(), kept);
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(size);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    resize_storage(storage, size);
  }
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  bool isPinnedPtr(const void* data) const override {
    return Pinned::holds(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
};

[[maybe_unused]] const bool are_hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

// Operators that are not computed -----------------------------------------------------------------------------------

at::Tensor empty(
    c10::SymIntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  Device::get().check();
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &memory, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>) {
  Device::get().check();
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory, keys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  std::optional<int64_t> at;
  if (offset) {
    at = offset->guard_int(__FILE__, __LINE__);
  }
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), at);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

// Only the storage's own size matters: what it had is in the same place afterwards.
const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  const auto needed = at::detail::computeStorageNbytesContiguous(
      impl->sizes(), self.dtype().itemsize(), self.storage_offset());
  if (needed > self.storage().nbytes()) {
    resize_storage(self.storage(), needed);
  }
  return self;
}

at::Tensor& set_(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset.guard_int(__FILE__, __LINE__));
  if (stride.empty()) {
    impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  } else {
    impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  }
  return self;
}

// As cudaMemcpyAsync. With pageable memory: to the device once the host's numbers are put aside, from it when it is done.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool is_asynchronous) {
  auto& stream = Device::get().current();
  if (from.is_cpu()) {
    stream.launch([from = from.clone(), to = on_host(to)] { to.copy_(from); });
  } else if (to.is_cpu() && is_asynchronous && Pinned::holds(to.data_ptr())) {
    // Not the tensor that Python has: who lets go of that waits for the GIL, which the host may keep in a full queue.
    stream.launch([from = on_host(from), to = to.detach()] { to.copy_(from); });
  } else if (to.is_cpu()) {
    stream.synchronize();
    to.copy_(on_host(from));
  } else {
    stream.launch([from = on_host(from), to = on_host(to)] { to.copy_(from); });
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  Device::get().current().synchronize();
  return on_host(self).item();
}

// Operators that are computed ---------------------------------------------------------------------------------------

bool is_ours(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == TYPE;
}

at::Tensor as_meta(const at::Tensor& tensor) {
  if (!is_ours(tensor)) {
    return tensor; // A number, which the CPU has: kernels take it beside any device.
  }
  auto meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return meta;
}

// The same arguments with every tensor changed.
template <typename Change>
c10::IValue changed(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    return change(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& each : value.toTensorVector()) {
      tensors.push_back(change(each));
    }
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
      tensors.push_back(each ? std::optional(change(*each)) : std::nullopt);
    }
    return tensors;
  }
  return value;
}

// Which argument a result is, for operators that write in place; -1: a new tensor; -2: a view of one.
int written(const c10::FunctionSchema& schema, const c10::Argument& result) {
  const auto* alias = result.alias_info();
  if (alias == nullptr) {
    return -1;
  }
  for (size_t index = 0; alias->isWrite() && index < schema.arguments().size(); ++index) {
    const auto* other = schema.arguments()[index].alias_info();
    if (other != nullptr && other->isWrite() && other->beforeSets() == alias->beforeSets()) {
      return static_cast<int>(index);
    }
  }
  return -2;
}

bool can_run_later(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta) || op.schema().returns().empty()) {
    return false;
  }
  for (const auto& result : op.schema().returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType || written(op.schema(), result) == -2) {
      return false;
    }
  }
  bool is_one_ours = false;
  for (const auto& argument : arguments) {
    if (argument.isDevice() || argument.isGenerator()) {
      return false;
    }
    is_one_ours = is_one_ours || !argument.isTensor() || is_ours(argument.toTensor());
  }
  return is_one_ours;
}

// Describes the results by the meta kernel and launches the CPU's. False where it has to be done at once.
bool run_later(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const auto arguments = torch::jit::last(*stack, count).vec();
  if (!can_run_later(op, arguments)) {
    return false;
  }
  torch::jit::Stack meta, host;
  for (const auto& each : arguments) {
    meta.push_back(changed(each, as_meta));
    // A tensor of the CPU among ours is a number that broadcasts: as it is now.
    host.push_back(changed(each, [](const at::Tensor& tensor) {
      return is_ours(tensor) ? on_host(tensor) : tensor.defined() ? tensor.clone() : tensor;
    }));
  }
  try {
    op.callBoxed(&meta);
  } catch (const c10::NotImplementedError&) {
    return false;
  }
  std::vector<c10::IValue> results;
  std::vector<at::Tensor> computed;
  for (size_t index = 0; index < schema.returns().size(); ++index) {
    const int at = written(schema, schema.returns()[index]);
    if (at >= 0) {
      const auto given = arguments[at].toTensor();
      if (meta[index].toTensor().sizes() != given.sizes()) {
        return false; // An `out` that is to be resized.
      }
      results.emplace_back(given);
      computed.emplace_back();
      continue;
    }
    const auto& like = meta[index].toTensor();
    auto made = like.defined() ? at::empty_strided(like.sizes(), like.strides(), like.options().device(THE_DEVICE))
                               : at::Tensor();
    computed.push_back(made.defined() ? on_host(made) : at::Tensor());
    results.emplace_back(std::move(made));
  }
  Device::get().current().launch([op, host = std::move(host), computed = std::move(computed)] {
    auto stack = host; // A graph is replayed with the same arguments.
    op.callBoxed(&stack);
    for (size_t index = 0; index < computed.size(); ++index) {
      if (computed[index].defined() && stack[index].toTensor().defined()) {
        computed[index].copy_(stack[index].toTensor());
      }
    }
  });
  torch::jit::drop(*stack, count);
  stack->insert(stack->end(), results.begin(), results.end());
  return true;
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Device::get().check();
  if (!run_later(op, stack)) {
    Device::get().current().synchronize();
    at::native::cpu_fallback(op, stack);
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage_storage_offset", &set_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
}

} // namespace

at::Tensor on_host(const at::Tensor& tensor) {
  const auto& memory = tensor.storage().data_ptr();
  const auto block = static_cast<Held*>(memory.get_context())->block;
  auto* data = static_cast<char*>(memory.get()) + tensor.storage_offset() * tensor.element_size();
  auto host = at::from_blob(
      data, tensor.sizes(), tensor.strides(), [block](void*) {}, tensor.options().device(c10::kCPU));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    host.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return host;
}

} // namespace emu
