// Kernels by name, called with arguments whose types are known only here.
#pragma once

#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "runtime.h"

namespace emulator {

// A kernel and how to call it from a list of pointers to its arguments.
struct Kernel {
  const char* name;
  int cluster;             // blocks, 1 where it has no clusters
  int threads;             // of a block
  const char* parameters;  // one letter each: P pointer, i int32, q int64, f float
  void (*call)(void**);
};

template <class T>
constexpr char letter() {
  if constexpr (std::is_pointer_v<T>) {
    return 'P';
  } else if constexpr (std::is_same_v<T, float>) {
    return 'f';
  } else {
    static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "a kernel takes pointers and numbers");
    return sizeof(T) == 4 ? 'i' : 'q';
  }
}

template <auto function, class>
struct Caller;

template <auto function, class... Arguments>
struct Caller<function, void (*)(Arguments...)> {
  static constexpr char parameters[] = {letter<Arguments>()..., 0};

  static void call(void** arguments) { call(arguments, std::index_sequence_for<Arguments...>()); }

  template <std::size_t... i>
  static void call(void** arguments, std::index_sequence<i...>) {
    function(*static_cast<Arguments*>(arguments[i])...);
  }
};

template <auto function>
constexpr Kernel describe(const char* name, int cluster, int threads) {
  using Its = Caller<function, decltype(function)>;
  return {name, cluster, threads, Its::parameters, Its::call};
}

extern const Kernel kernels[];
extern const int kernel_count;

inline const Kernel* find(const char* name) {
  for (int i = 0; i < kernel_count; i++) {
    if (std::strcmp(kernels[i].name, name) == 0) return &kernels[i];
  }
  return nullptr;
}

struct Call {
  const Kernel* kernel;
  void** arguments;
};

}  // namespace emulator

#define EMULATOR_EXPORT extern "C" __attribute__((visibility("default")))

// A letter for each parameter of a kernel, or nullptr if there is none of this name.
EMULATOR_EXPORT const char* emulator_parameters_of(const char* name) {
  const emulator::Kernel* kernel = emulator::find(name);
  return kernel ? kernel->parameters : nullptr;
}

EMULATOR_EXPORT int emulator_run_kernel(const char* name, const unsigned* grid, const unsigned* block,
                                        std::size_t shared_bytes, void** arguments,
                                        const emulator::Schedule* schedule, char* error, std::size_t error_size) {
  const emulator::Kernel* kernel = emulator::find(name);
  const emulator::Shape shape = {{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, kernel->cluster,
                                 shared_bytes};
  const unsigned threads = block[0] * block[1] * block[2];
  if (threads != static_cast<unsigned>(kernel->threads) || threads % emulator::warp_size) {
    std::snprintf(error, error_size, "blocks of %u threads: this kernel takes %d", threads, kernel->threads);
    return 0;
  }
  if (grid[0] % kernel->cluster) {
    std::snprintf(error, error_size, "grid of %u blocks, in clusters of %d", grid[0], kernel->cluster);
    return 0;
  }
  emulator::Call call = {kernel, arguments};
  const auto body = [](void* given) {
    const auto* its = static_cast<emulator::Call*>(given);
    its->kernel->call(its->arguments);
  };
  return emulator::run(shape, *schedule, body, &call, error, error_size);
}
