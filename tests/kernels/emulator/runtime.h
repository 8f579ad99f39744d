// What the emulated machine is made of. Each CUDA thread is a fiber that runs until it has to wait for others.
//
// Stricter than a GPU on purpose: what CUDA leaves undefined ends the launch with an error that names the thread and,
// for barriers and warp-wide operations, the line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "fibers.h"

struct dim3 {
  unsigned x, y, z;
};

namespace emulator {

constexpr int warp_size = 32;

// Where in the kernel sources an operation stands.
struct Site {
  const char* file = "";
  int line = 0;
  bool operator==(const Site& other) const { return file == other.file && line == other.line; }
};

// An asynchronous copy of 16 bytes to shared memory that has not arrived.
struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int bytes;  // read; the rest becomes zero
};

// A rendezvous: the last of the expected to arrive opens it for all.
struct Gate {
  int expected = 0, arrived = 0;
  unsigned opened = 0;  // how often
  Site site = {};
};

struct Warp {
  Gate gate;
  int present = 0;
  // What lanes handed in at the last two rendezvous: a lane reads one while another is already at the next.
  std::uint64_t slots[2][warp_size][4];
};

struct Cluster;

struct Block {
  dim3 index;
  unsigned number, rank;  // in the grid, in the cluster
  Cluster* cluster;
  Gate gate;
  int present;
  bool peers_read;  // its shared memory, since the last cluster barrier
  unsigned char* shared;
  std::size_t shared_bytes;
  std::vector<Warp> warps;
};

struct Cluster {
  Gate gate;
  int present;
  std::vector<Block> blocks;
};

struct Thread {
  Context context;
  char* stack;
  dim3 index;
  int lane;
  Block* block;
  Warp* warp;
  const Gate* waits_at;    // nullptr: it can run
  unsigned opened_before;  // the gate's count when it began to wait
  bool done;
  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> copy_groups;
};

// Who runs when. A unit of threads runs until none of it can go on, then the next unit does.
struct Schedule {
  int unit;           // threads of a unit: 1, 32, those of a block, ...; 0 for all of a cluster
  int order;          // of units, and of threads within: 0 ascending, 1 descending, 2 at random, anew each time round
  int resident;       // clusters (or single blocks) that run side by side
  int late_copies;    // 1: asynchronous copies arrive when waited for, and spoil their target until then; 0: at once
  int preempt_every;  // about how many accesses to global memory let others run; 0 for none
  unsigned seed;
};

struct Shape {
  dim3 grid, block;
  int cluster;
  std::size_t shared_bytes;
};

extern Thread* current;
extern dim3 grid_dim, block_dim;

// End the launch with this message. Never returns to the thread that calls it.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Let other threads run.
void pause_thread();

void pass_block_gate(Site site);
void pass_cluster_gate(Site site);

// Hand in `count` words and wait for the whole warp; returns the slots of all its lanes.
const std::uint64_t (*pass_warp_gate(unsigned mask, const std::uint64_t* words, int count, Site site))[4];

void begin_copy(void* shared, const void* global, int bytes);
void commit_copies();
void wait_for_copies(int pending);

// Every access to global memory is announced first, so that races between threads are seen whatever the schedule.
enum class Access { read_only, load, store };
void announce(Access access, const void* address, int bytes);

// The address in block `rank`'s shared memory that corresponds to this block's `mine`.
const unsigned char* peer_address(const void* mine, int bytes, unsigned rank);

// That all of it lies in the block's shared memory and is aligned to its size.
void check_shared(const void* address, int bytes);

// Run `body(argument)` once for each thread. Returns whether it went well; else `error` says why not.
bool run(const Shape& shape, const Schedule& schedule, void (*body)(void*), void* argument, char* error,
         std::size_t error_size);

}  // namespace emulator
