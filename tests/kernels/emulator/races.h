// Which thread last wrote each place of global memory during a launch, to tell races whatever the schedule was.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime.h"

namespace emulator {

// A thread at a moment: what happened before in the same block counts as past once a barrier was passed.
struct Moment {
  std::uint32_t block, thread;
  unsigned block_gate, warp_gate;

  // Whether something this thread does at `other` surely comes after what `*this` did.
  bool precedes(const Moment& other) const {
    if (block != other.block) return false;
    if (thread == other.thread || block_gate != other.block_gate) return true;
    return thread / warp_size == other.thread / warp_size && warp_gate != other.warp_gate;
  }
};

// A hash table by address with open addressing, in units of two bytes: the narrowest type that kernels store.
class Writes {
 public:
  void clear() {
    for (Entry& entry : entries_) entry.unit = 0;
    used_ = 0;
    lowest_ = UINTPTR_MAX;
    highest_ = 0;
  }

  // Who wrote to these bytes, if that is not known to be over at `now`; else nullptr.
  const Moment* find_unordered(std::uintptr_t address, int bytes, const Moment& now) {
    if (address + bytes <= lowest_ || address > highest_) return nullptr;
    for (std::uintptr_t unit = address / 2; unit < (address + bytes) / 2; unit++) {
      const Entry& entry = entries_[place(unit)];
      if (entry.unit && !entry.writer.precedes(now)) return &entry.writer;
    }
    return nullptr;
  }

  // Whether anybody wrote to these bytes.
  bool touched(std::uintptr_t address, int bytes) {
    if (address + bytes <= lowest_ || address > highest_) return false;
    for (std::uintptr_t unit = address / 2; unit < (address + bytes) / 2; unit++) {
      if (entries_[place(unit)].unit) return true;
    }
    return false;
  }

  void note(std::uintptr_t address, int bytes, const Moment& now) {
    if (2 * (used_ + bytes) > entries_.size()) grow();
    for (std::uintptr_t unit = address / 2; unit < (address + bytes) / 2; unit++) {
      Entry& entry = entries_[place(unit)];
      used_ += entry.unit == 0;
      entry = {unit, now};
    }
    lowest_ = address < lowest_ ? address : lowest_;
    highest_ = address + bytes - 1 > highest_ ? address + bytes - 1 : highest_;
  }

 private:
  struct Entry {
    std::uintptr_t unit = 0;
    Moment writer = {};
  };

  std::size_t place(std::uintptr_t unit) const {
    std::size_t at = unit * 0x9e3779b97f4a7c15u >> 20 & (entries_.size() - 1);
    while (entries_[at].unit && entries_[at].unit != unit) at = (at + 1) & (entries_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Entry> old(entries_.size() * 2);
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.unit) entries_[place(entry.unit)] = entry;
    }
  }

  std::vector<Entry> entries_ = std::vector<Entry>(1 << 12);
  std::size_t used_ = 0;
  std::uintptr_t lowest_ = UINTPTR_MAX, highest_ = 0;
};

}  // namespace emulator
