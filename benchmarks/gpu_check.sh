#!/usr/bin/env bash
# Everything about the kernels that only a GPU can tell, in one call of under 8 minutes. Run from anywhere, with the
# environment's Python first in PATH or in PYTHON. Needs: torch for CUDA, and the package's extra `gpu`.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
OUT=${OUT:-runs}
mkdir -p "$OUT"
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
status=0

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv || true
timeout 270 "$PYTHON" -m benchmarks.gpu_check --json "$OUT/gpu_check.json" || status=1

if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck synccheck; do
    echo
    echo "compute-sanitizer, $tool"
    # PyTorch's allocator hides overruns within its large blocks
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 65 compute-sanitizer --tool "$tool" --error-exitcode 3 \
      "$PYTHON" -m benchmarks.gpu_check --small | tail -n 5
    code=${PIPESTATUS[0]}
    if [ "$code" = 124 ]; then echo "$tool: stopped after 65 s, nothing found until then"
    elif [ "$code" != 0 ]; then echo "$tool: found something (exit $code)"; status=1; fi
  done
else
  echo "compute-sanitizer is not installed: left out"
fi
exit $status
