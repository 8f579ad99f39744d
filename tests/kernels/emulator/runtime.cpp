// Runs a grid: lays out blocks and their shared memory, and lets fibers run in the order that the schedule says.
#define EMULATOR_RUNTIME
#include "machine.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>

namespace emulator {

Thread* current = nullptr;
dim3 grid_dim, block_dim;
Machine machine;

namespace {

constexpr std::size_t page = 4096, stack_bytes = 16 * page, guard_bytes = 64 * page;

std::mutex one_launch_at_a_time;

// Memory between two stretches that nobody may touch, wider than shared memory can be.
unsigned char* map_guarded(std::size_t bytes) {
  void* base = mmap(nullptr, bytes + 2 * guard_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  unsigned char* inner = static_cast<unsigned char*>(base) + guard_bytes;
  if (base == MAP_FAILED || mprotect(inner, bytes, PROT_READ | PROT_WRITE) != 0) return nullptr;
  return inner;
}

void unmap_guarded(unsigned char* inner, std::size_t bytes) { munmap(inner - guard_bytes, bytes + 2 * guard_bytes); }

std::size_t whole_pages(std::size_t bytes) { return (bytes + page - 1) / page * page; }

void run_thread() {
  machine.body(machine.argument);
  Block* block = current->block;
  if (block->gate.arrived) fail("left while %d threads wait at line %d", block->gate.arrived, block->gate.site.line);
  if (current->warp->gate.arrived) fail("left while lanes wait at line %d", current->warp->gate.site.line);
  if (block->peers_read) fail("left where other blocks of the cluster may still read its shared memory");
  current->done = true;
  current->warp->present--;
  block->cluster->present--;
  if (--block->present == 0) std::memset(block->shared, 0xff, block->shared_bytes);
  for (;;) pause_thread();
}

bool can_run(const Thread& thread) {
  return !thread.done && (!thread.waits_at || thread.waits_at->opened != thread.opened_before);
}

// Whether the thread could run. It is over when it comes back done.
bool resume(Thread& thread) {
  if (!can_run(thread)) return false;
  thread.waits_at = nullptr;
  current = &thread;
  switch_context(machine.scheduler, thread.context);
  current = nullptr;
  return true;
}

// Threads of a unit, in the order in which they take turns.
using Unit = std::vector<Thread*>;

template <class T>
void put_in_order(std::vector<T>& list) {
  if (machine.schedule.order == 1) std::reverse(list.begin(), list.end());
  if (machine.schedule.order == 2) std::shuffle(list.begin(), list.end(), machine.random);
}

void run_unit(Unit& unit) {
  bool again = true;
  while (again && !machine.failed) {
    again = false;
    for (Thread* thread : unit) {
      again |= resume(*thread);
      if (machine.failed) return;
    }
    again &= unit.size() > 1;
  }
}

void report_deadlock(const std::vector<Unit>& units) {
  int at_block = 0, at_warp = 0, at_cluster = 0;
  Site site;
  for (const Unit& unit : units) {
    for (const Thread* thread : unit) {
      if (thread->done) continue;
      const Gate* gate = thread->waits_at;
      site = gate->site;
      (gate == &thread->block->gate ? at_block : gate == &thread->warp->gate ? at_warp : at_cluster)++;
    }
  }
  std::snprintf(machine.message, sizeof machine.message,
                "deadlock: %d threads at a block barrier, %d at a warp-wide operation, %d at a cluster barrier; "
                "line %d of %s",
                at_block, at_warp, at_cluster, site.line, site.file);
  machine.failed = true;
}

void run_units(std::vector<Unit>& units) {
  put_in_order(units);
  for (Unit& unit : units) put_in_order(unit);
  while (!machine.failed) {
    bool any = false, all_done = true;
    for (Unit& unit : units) {
      any |= std::any_of(unit.begin(), unit.end(), [](const Thread* thread) { return can_run(*thread); });
      run_unit(unit);
      if (machine.failed) return;
    }
    for (const Unit& unit : units) {
      for (const Thread* thread : unit) all_done &= thread->done;
    }
    if (all_done) return;
    if (!any) return report_deadlock(units);
    if (machine.schedule.order == 2) put_in_order(units);
  }
}

// What one resident cluster needs, reused by those that come after it.
struct Seat {
  Cluster cluster;
  std::vector<std::vector<Thread>> threads;  // of each block
};

bool furnish(Seat& seat, const Shape& shape) {
  const int threads = shape.block.x * shape.block.y * shape.block.z;
  seat.cluster.blocks.resize(shape.cluster);
  seat.threads.resize(shape.cluster);
  for (int rank = 0; rank < shape.cluster; rank++) {
    Block& block = seat.cluster.blocks[rank];
    block.shared = map_guarded(whole_pages(shape.shared_bytes));
    block.warps.resize(threads / warp_size);
    seat.threads[rank].resize(threads);
    for (Thread& thread : seat.threads[rank]) {
      thread.stack = nullptr;
      if (!machine.spare_stacks.empty()) {
        thread.stack = machine.spare_stacks.back();
        machine.spare_stacks.pop_back();
      } else {
        thread.stack = reinterpret_cast<char*>(map_guarded(stack_bytes));
      }
      if (!thread.stack) return false;
    }
    if (!block.shared) return false;
  }
  return true;
}

void clear_away(Seat& seat, const Shape& shape) {
  for (std::vector<Thread>& threads : seat.threads) {
    for (Thread& thread : threads) {
      if (thread.stack) machine.spare_stacks.push_back(thread.stack);
    }
  }
  for (Block& block : seat.cluster.blocks) {
    if (block.shared) unmap_guarded(block.shared, whole_pages(shape.shared_bytes));
  }
}

// Shared memory ends where the guard page begins, so that the first byte too many is noticed; what nobody wrote is NaN.
void start_block(Seat& seat, const Shape& shape, unsigned number, int rank) {
  const dim3 grid = shape.grid, dim = shape.block;
  Block& block = seat.cluster.blocks[rank];
  const int threads = static_cast<int>(seat.threads[rank].size());
  const std::size_t pages = whole_pages(shape.shared_bytes), rounded = (shape.shared_bytes + 15) / 16 * 16;
  block.index = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
  block.number = number;
  block.rank = rank;
  block.cluster = &seat.cluster;
  block.gate = Gate{threads};
  block.present = threads;
  block.peers_read = false;
  block.shared = block.shared + (pages - rounded);
  block.shared_bytes = rounded;
  std::memset(block.shared, 0xff, rounded);
  for (Warp& warp : block.warps) {
    warp.gate = Gate{warp_size};
    warp.present = warp_size;
  }
  for (int i = 0; i < threads; i++) {
    Thread& thread = seat.threads[rank][i];
    thread.index = {i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y};
    thread.lane = i % warp_size;
    thread.block = &block;
    thread.warp = &block.warps[i / warp_size];
    thread.waits_at = nullptr;
    thread.done = false;
    thread.open_copies.clear();
    thread.copy_groups.clear();
    prepare_context(thread.context, thread.stack, stack_bytes, run_thread);
  }
}

void start_cluster(Seat& seat, const Shape& shape, unsigned number) {
  seat.cluster.present = 0;
  for (int rank = 0; rank < shape.cluster; rank++) {
    start_block(seat, shape, number * shape.cluster + rank, rank);
    seat.cluster.present += seat.cluster.blocks[rank].present;
  }
  seat.cluster.gate = Gate{seat.cluster.present};
}

void end_cluster(Seat& seat, const Shape& shape) {
  const std::size_t rounded = (shape.shared_bytes + 15) / 16 * 16;
  for (Block& block : seat.cluster.blocks) block.shared -= whole_pages(shape.shared_bytes) - rounded;
}

void run_side_by_side(std::vector<Seat*>& seats) {
  std::vector<Unit> units;
  for (Seat* seat : seats) {
    std::size_t in_unit = 0;
    for (std::vector<Thread>& threads : seat->threads) {
      for (Thread& thread : threads) {
        const std::size_t full = machine.schedule.unit;
        if (units.empty() || in_unit == 0 || (full && in_unit == full)) {
          units.emplace_back();
          in_unit = 0;
        }
        units.back().push_back(&thread);
        in_unit++;
      }
    }
  }
  run_units(units);
}

void run_grid(const Shape& shape, std::vector<Seat>& seats) {
  const unsigned clusters = shape.grid.x * shape.grid.y * shape.grid.z / shape.cluster;
  std::vector<unsigned> numbers(clusters);
  for (unsigned i = 0; i < clusters; i++) numbers[i] = i;
  put_in_order(numbers);
  for (std::size_t first = 0; first < numbers.size() && !machine.failed; first += seats.size()) {
    std::vector<Seat*> taken;
    for (std::size_t i = 0; i < seats.size() && first + i < numbers.size(); i++) {
      start_cluster(seats[i], shape, numbers[first + i]);
      taken.push_back(&seats[i]);
    }
    run_side_by_side(taken);
    for (Seat* seat : taken) end_cluster(*seat, shape);
  }
}

void on_fault(int signal, siginfo_t* info, void*) {
  if (!current) {  // not a kernel's: let it do what it does without us
    ::signal(signal, SIG_DFL);
    return;
  }
  const auto* at = static_cast<unsigned char*>(info->si_addr);
  for (const Block& block : current->block->cluster->blocks) {
    const std::ptrdiff_t offset = at - block.shared, size = static_cast<std::ptrdiff_t>(block.shared_bytes);
    if (offset >= -static_cast<std::ptrdiff_t>(guard_bytes) && offset < size + static_cast<std::ptrdiff_t>(guard_bytes)) {
      fail("access outside shared memory, at %td of %td bytes", offset, size);
    }
  }
  fail("access to memory that is no tensor's, at %p", info->si_addr);
}

// Catches faults of kernels for as long as it lives.
class FaultHandler {
 public:
  FaultHandler() : stack_(16 * page) {
    stack_t mine = {};
    mine.ss_sp = stack_.data();
    mine.ss_size = stack_.size();
    sigaltstack(&mine, &old_stack_);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
  }
  ~FaultHandler() {
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  std::vector<char> stack_;
  stack_t old_stack_;
  struct sigaction old_segv_, old_bus_;
};

}  // namespace

bool run(const Shape& shape, const Schedule& schedule, void (*body)(void*), void* argument, char* error,
         std::size_t error_size) {
  const std::lock_guard<std::mutex> lock(one_launch_at_a_time);
  machine.schedule = schedule;
  machine.random.seed(schedule.seed + 1);
  machine.writes.clear();
  machine.body = body;
  machine.argument = argument;
  machine.failed = false;
  machine.message[0] = 0;
  grid_dim = shape.grid;
  block_dim = shape.block;
  std::vector<Seat> seats(std::max(schedule.resident, 1));
  const FaultHandler handler;
  const bool furnished = std::all_of(seats.begin(), seats.end(), [&](Seat& seat) { return furnish(seat, shape); });
  if (furnished) {
    run_grid(shape, seats);
  } else {
    machine.failed = true;
    std::snprintf(machine.message, sizeof machine.message, "no memory for %d blocks side by side", schedule.resident);
  }
  for (Seat& seat : seats) clear_away(seat, shape);
  std::snprintf(error, error_size, "%s", machine.message);
  return !machine.failed;
}

}  // namespace emulator
