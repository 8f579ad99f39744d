// Contexts to switch between: one for each CUDA thread, and one for the scheduler.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) || defined(EMULATOR_PORTABLE_FIBERS)
#include <ucontext.h>

namespace emulator {

struct Context {
  ucontext_t state;
};

inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

// A context that will run `entry`, which never returns, on a stack of `size` bytes.
inline void prepare_context(Context& context, char* stack, std::size_t size, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = size;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

}  // namespace emulator

#else

namespace emulator {

struct Context {
  void* stack_pointer;
};

// Pushes what a callee has to keep, changes stacks and pops the same there. swapcontext would ask the kernel for the
// signal mask each time, which makes a barrier of 1024 threads ten times as dear.
extern "C" void emulator_switch_stacks(void** from, void* to);

inline void switch_context(Context& from, Context& to) {
  emulator_switch_stacks(&from.stack_pointer, to.stack_pointer);
}

inline void prepare_context(Context& context, char* stack, std::size_t size, void (*entry)()) {
  constexpr int kept_registers = 6;
  void** top = reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(stack) + size) & ~std::uintptr_t{15});
  *--top = nullptr;  // so that the stack is aligned within `entry` as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kept_registers; i++) *--top = nullptr;
  context.stack_pointer = top;
}

}  // namespace emulator

#ifdef EMULATOR_RUNTIME
asm(R"(
.text
.globl emulator_switch_stacks
.type emulator_switch_stacks,@function
emulator_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch_stacks,.-emulator_switch_stacks
)");
#endif

#endif
