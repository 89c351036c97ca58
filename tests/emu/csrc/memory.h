// The device's memory: a caching allocator's figures over an address space of its own.
//
// As torch's for CUDA has them (c10/cuda/CUDACachingAllocator.cpp): segments that are split and joined again, small ones
// apart from large ones, the best fit, what is unused given back before the device is out of memory. Numbers lie in
// memory of the host that each tensor has to itself, so that what is launched may use it when it is freed.
#pragma once

#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <map>
#include <mutex>
#include <set>

namespace emu {

// Where tensors of the device would lie, and how much of it they have.
class Space {
 public:
  Space();

  // The address of so many bytes, for a stream. Throws OutOfMemoryError as CUDA does, once what is unused was given back in vain.
  size_t take(size_t requested, int64_t stream);
  void give_back(size_t address);
  // Segments of which nothing is in use.
  void release_unused();
  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_peaks();
  void reset_sums();
  // Free of the device, and all of it, in bytes.
  std::pair<size_t, size_t> info();
  // As if others on the device held so much of it.
  void set_others(size_t size);

 private:
  struct Block {
    size_t size;
    size_t requested;
    size_t segment; // Its first block's address.
    bool is_used;
    bool is_large;
    int64_t stream; // Tensors of others get none of it.
  };
  using Free = std::set<std::pair<size_t, size_t>>; // Size and address.
  using Blocks = std::map<size_t, Block>;

  bool add_segment(size_t size, bool is_large, int64_t stream);
  void release_unused_locked();
  void split(Blocks::iterator block, size_t size);
  void join(Blocks::iterator block);
  bool is_split(Blocks::const_iterator block) const;
  void count_inactive(Blocks::const_iterator block, bool is_more);
  void count(c10::CachingAllocator::StatArray& array, bool is_large, size_t size, bool is_more);

  std::mutex mutex_;
  Blocks blocks_; // By address, used and free.
  std::map<int64_t, std::array<Free, 2>> free_; // By stream: small and large.
  size_t next_ = 1 << 20;
  size_t total_;
  size_t others_ = 0;
  size_t reserved_ = 0;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

Space& space();

} // namespace emu
