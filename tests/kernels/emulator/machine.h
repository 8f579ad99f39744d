// The state of the launch that is running, known to the runtime's own parts only.
#pragma once

#include <random>
#include <vector>

#include "races.h"
#include "runtime.h"

namespace emulator {

struct Machine {
  Context scheduler;
  Schedule schedule;
  std::minstd_rand random;
  Writes writes;
  std::vector<char*> spare_stacks;
  void (*body)(void*);
  void* argument;
  bool failed;
  char message[512];
};

extern Machine machine;

}  // namespace emulator
