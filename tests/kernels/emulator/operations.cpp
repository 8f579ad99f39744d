// What threads do to each other: barriers, exchanges within a warp, copies, accesses that race.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "machine.h"

namespace emulator {

namespace {

const std::uint64_t no_words[4] = {};

Moment now() {
  const unsigned thread =
      current->index.x + block_dim.x * (current->index.y + block_dim.y * current->index.z);
  return {current->block->number, thread, current->block->gate.opened, current->warp->gate.opened};
}

void wait_at(Gate& gate, Site site) {
  if (gate.arrived == 0) gate.site = site;
  if (!(gate.site == site)) {
    fail("barrier at line %d of %s, while others wait at line %d of %s", site.line, site.file, gate.site.line,
         gate.site.file);
  }
  if (++gate.arrived == gate.expected) {
    gate.arrived = 0;
    gate.opened++;
    return;
  }
  current->waits_at = &gate;
  current->opened_before = gate.opened;
  pause_thread();
}

void arrive(const Copy& copy) {
  std::memcpy(copy.to, copy.from, copy.bytes);
  std::memset(copy.to + copy.bytes, 0, 16 - copy.bytes);
}

}  // namespace

void fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int length = std::vsnprintf(machine.message, sizeof machine.message - 100, format, values);
  va_end(values);
  const dim3 block = current->block->index, thread = current->index;
  std::snprintf(machine.message + std::min<int>(length, sizeof machine.message - 101), 100,
                " (block %u,%u,%u thread %u,%u,%u)", block.x, block.y, block.z, thread.x, thread.y, thread.z);
  machine.failed = true;
  for (;;) pause_thread();
}

void pause_thread() { switch_context(current->context, machine.scheduler); }

void pass_block_gate(Site site) {
  Block& block = *current->block;
  if (block.present != block.gate.expected) {
    fail("barrier at line %d of %s, which %d threads of the block will not reach: they have left", site.line, site.file,
         block.gate.expected - block.present);
  }
  wait_at(block.gate, site);
}

void pass_cluster_gate(Site site) {
  Cluster& cluster = *current->block->cluster;
  if (cluster.present != cluster.gate.expected) {
    fail("cluster barrier at line %d of %s, which %d threads will not reach: they have left", site.line, site.file,
         cluster.gate.expected - cluster.present);
  }
  // a thread passes no cluster barrier that others of its block still have to reach, so it orders within blocks too
  if (cluster.gate.arrived + 1 == cluster.gate.expected) {
    for (Block& block : cluster.blocks) {
      block.gate.opened++;
      block.peers_read = false;
    }
  }
  wait_at(cluster.gate, site);
}

const std::uint64_t (*pass_warp_gate(unsigned mask, const std::uint64_t* words, int count, Site site))[4] {
  Warp& warp = *current->warp;
  if (mask != 0xffffffffu) fail("warp-wide operation with mask %08x at line %d: only full warps", mask, site.line);
  if (warp.present != warp_size) {
    fail("warp-wide operation at line %d of %s, which %d lanes will not reach: they have left", site.line, site.file,
         warp_size - warp.present);
  }
  auto& slots = warp.slots[warp.gate.opened % 2];
  std::memcpy(slots[current->lane], count ? words : no_words, count * sizeof *words);
  wait_at(warp.gate, site);
  return slots;
}

void check_shared(const void* address, int bytes) {
  const Block& block = *current->block;
  const std::ptrdiff_t offset = static_cast<const unsigned char*>(address) - block.shared;
  if (offset < 0 || offset + bytes > static_cast<std::ptrdiff_t>(block.shared_bytes)) {
    fail("%d bytes at %td of %zu bytes of shared memory", bytes, offset, block.shared_bytes);
  }
  if (offset % bytes) fail("%d bytes at %td of shared memory: not aligned", bytes, offset);
}

const unsigned char* peer_address(const void* mine, int bytes, unsigned rank) {
  check_shared(mine, bytes);
  const Block& block = *current->block;
  if (rank >= block.cluster->blocks.size()) fail("block %u of a cluster of %zu", rank, block.cluster->blocks.size());
  Block& peer = block.cluster->blocks[rank];
  if (peer.present != peer.gate.expected) fail("reads shared memory of block %u of the cluster, which has left", rank);
  peer.peers_read = true;
  return peer.shared + (static_cast<const unsigned char*>(mine) - block.shared);
}

void begin_copy(void* shared, const void* global, int bytes) {
  check_shared(shared, 16);
  if (bytes < 0 || bytes > 16) fail("asynchronous copy of %d bytes", bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(global);
  if (address % 16) fail("asynchronous copy from %p: not a multiple of 16", global);
  if (bytes) announce(Access::load, global, bytes / 2 * 2);
  const Copy copy = {static_cast<unsigned char*>(shared), static_cast<const unsigned char*>(global), bytes};
  if (machine.schedule.late_copies) {
    std::memset(copy.to, 0xff, 16);
    current->open_copies.push_back(copy);
  } else {
    arrive(copy);
  }
}

void commit_copies() {
  current->copy_groups.push_back(std::move(current->open_copies));
  current->open_copies.clear();
}

void wait_for_copies(int pending) {
  auto& groups = current->copy_groups;
  for (; static_cast<int>(groups.size()) > pending; groups.pop_front()) {
    for (const Copy& copy : groups.front()) arrive(copy);
  }
}

void announce(Access access, const void* p, int bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && address % bytes) fail("%d bytes at %p: not aligned", bytes, p);
  const Schedule& schedule = machine.schedule;
  if (schedule.preempt_every && machine.random() % schedule.preempt_every == 0) pause_thread();
  if (access == Access::read_only) {
    if (machine.writes.touched(address, bytes)) fail("reads %p as read-only, which this launch has written", p);
    return;
  }
  const Moment moment = now();
  if (const Moment* other = machine.writes.find_unordered(address, bytes, moment)) {
    fail("%s %p, which thread %u of block %u wrote with no barrier between", access == Access::load ? "reads" : "writes",
         p, other->thread, other->block);
  }
  if (access == Access::store) machine.writes.note(address, bytes, moment);
}

}  // namespace emulator
