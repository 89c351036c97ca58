#include "memory.h"

#include "tensors.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <iterator>

namespace emu {

namespace {

using c10::CachingAllocator::StatType;

constexpr size_t MIN_BLOCK = 512;
constexpr size_t SMALL = 1 << 20; // Up to it, blocks come from segments of …
constexpr size_t SMALL_SEGMENT = 2 << 20;
constexpr size_t LARGE_SEGMENT = 20 << 20; // … and up to MIN_LARGE from these; larger ones have their own, …
constexpr size_t MIN_LARGE = 10 << 20;
constexpr size_t ROUND_LARGE = 2 << 20; // … in multiples of this.
constexpr size_t DEFAULT_MB = 80 << 10;

size_t rounded(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

size_t segment_size(size_t size) {
  return size <= SMALL ? SMALL_SEGMENT : size < MIN_LARGE ? LARGE_SEGMENT : rounded(size, ROUND_LARGE);
}

} // namespace

Space::Space() {
  const char* text = std::getenv("EMU_MEMORY_MB");
  total_ = (text != nullptr ? std::strtoull(text, nullptr, 10) : DEFAULT_MB) << 20;
}

size_t Space::take(size_t requested, int64_t stream) {
  std::lock_guard lock(mutex_);
  const size_t size = rounded(std::max(requested, MIN_BLOCK), MIN_BLOCK);
  const bool is_large = size > SMALL;
  auto& free = free_[stream][is_large];
  auto best = free.lower_bound({size, 0});
  if (best == free.end()) {
    if (!add_segment(segment_size(size), is_large, stream)) {
      ++stats_.num_alloc_retries;
      release_unused_locked();
      if (!add_segment(segment_size(size), is_large, stream)) {
        ++stats_.num_ooms;
        TORCH_CHECK_WITH(
            OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", size >> 20, " MiB. GPU 0 has a total capacity of ",
            total_ >> 20, " MiB of which ", (total_ - others_ - reserved_) >> 20, " MiB is free.");
      }
    }
    best = free.lower_bound({size, 0});
  }
  const auto block = blocks_.find(best->second);
  count_inactive(block, false);
  free.erase(best);
  block->second.is_used = true;
  block->second.requested = requested;
  const size_t rest = block->second.size - size;
  if (is_large ? rest > SMALL : rest >= MIN_BLOCK) {
    split(block, size);
  }
  count(stats_.allocation, is_large, 1, true);
  count(stats_.active, is_large, 1, true);
  count(stats_.allocated_bytes, is_large, block->second.size, true);
  count(stats_.active_bytes, is_large, block->second.size, true);
  count(stats_.requested_bytes, is_large, requested, true);
  return block->first;
}

void Space::give_back(size_t address) {
  std::lock_guard lock(mutex_);
  const auto block = blocks_.find(address);
  auto& [size, requested, segment, is_used, is_large, stream] = block->second;
  count(stats_.allocation, is_large, 1, false);
  count(stats_.active, is_large, 1, false);
  count(stats_.allocated_bytes, is_large, size, false);
  count(stats_.active_bytes, is_large, size, false);
  count(stats_.requested_bytes, is_large, requested, false);
  is_used = false;
  join(block);
}

void Space::release_unused() {
  std::lock_guard lock(mutex_);
  release_unused_locked();
}

c10::CachingDeviceAllocator::DeviceStats Space::stats() {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Space::reset_peaks() {
  std::lock_guard lock(mutex_);
  for (auto* array : {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split, &stats_.allocated_bytes,
                      &stats_.reserved_bytes, &stats_.active_bytes, &stats_.inactive_split_bytes, &stats_.requested_bytes}) {
    for (auto& stat : *array) {
      stat.reset_peak();
    }
  }
}

void Space::reset_sums() {
  std::lock_guard lock(mutex_);
  stats_.num_alloc_retries = stats_.num_ooms = 0;
}

std::pair<size_t, size_t> Space::info() {
  std::lock_guard lock(mutex_);
  return {total_ - others_ - reserved_, total_};
}

void Space::set_others(size_t size) {
  std::lock_guard lock(mutex_);
  others_ = std::min(size, total_ - reserved_);
}

bool Space::add_segment(size_t size, bool is_large, int64_t stream) {
  if (reserved_ + others_ + size > total_) {
    return false;
  }
  const size_t address = next_;
  next_ += rounded(size, ROUND_LARGE) + ROUND_LARGE; // No two segments touch.
  reserved_ += size;
  blocks_[address] = {size, 0, address, false, is_large, stream};
  free_[stream][is_large].emplace(size, address);
  count(stats_.segment, is_large, 1, true);
  count(stats_.reserved_bytes, is_large, size, true);
  return true;
}

void Space::release_unused_locked() {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    const auto [size, requested, segment, is_used, is_large, stream] = block->second;
    if (is_used || is_split(block)) {
      ++block;
      continue;
    }
    free_[stream][is_large].erase({size, block->first});
    reserved_ -= size;
    count(stats_.segment, is_large, 1, false);
    count(stats_.reserved_bytes, is_large, size, false);
    block = blocks_.erase(block);
  }
}

void Space::split(Blocks::iterator block, size_t size) {
  const size_t address = block->first + size;
  const auto& whole = block->second;
  const auto rest = blocks_.emplace(address, Block{whole.size - size, 0, whole.segment, false, whole.is_large, whole.stream}).first;
  block->second.size = size;
  free_[whole.stream][whole.is_large].emplace(rest->second.size, address);
  count_inactive(rest, true);
}

// With its free neighbours of the same segment.
void Space::join(Blocks::iterator block) {
  auto absorb = [&](Blocks::iterator first, Blocks::iterator second) {
    first->second.size += second->second.size;
    blocks_.erase(second);
    return first;
  };
  auto is_free = [&](Blocks::iterator other) {
    return !other->second.is_used && other->second.segment == block->second.segment;
  };
  auto leave = [&](Blocks::iterator other) {
    count_inactive(other, false);
    free_[other->second.stream][other->second.is_large].erase({other->second.size, other->first});
  };
  if (auto next = std::next(block); next != blocks_.end() && is_free(next)) {
    leave(next);
    absorb(block, next);
  }
  if (block != blocks_.begin() && is_free(std::prev(block))) {
    leave(std::prev(block));
    block = absorb(std::prev(block), block);
  }
  free_[block->second.stream][block->second.is_large].emplace(block->second.size, block->first);
  count_inactive(block, true);
}

bool Space::is_split(Blocks::const_iterator block) const {
  const auto next = std::next(block);
  return block->first != block->second.segment || (next != blocks_.end() && next->second.segment == block->second.segment);
}

// A free block of a segment of which others are in use.
void Space::count_inactive(Blocks::const_iterator block, bool is_more) {
  if (is_split(block)) {
    count(stats_.inactive_split, block->second.is_large, 1, is_more);
    count(stats_.inactive_split_bytes, block->second.is_large, block->second.size, is_more);
  }
}

void Space::count(c10::CachingAllocator::StatArray& array, bool is_large, size_t size, bool is_more) {
  for (const auto type : {StatType::AGGREGATE, is_large ? StatType::LARGE_POOL : StatType::SMALL_POOL}) {
    auto& stat = array[static_cast<size_t>(type)];
    is_more ? stat.increase(size) : stat.decrease(size);
  }
}

Space& space() {
  static auto* kept = new Space(); // Leaked: tensors may outlive all else.
  return *kept;
}

} // namespace emu
