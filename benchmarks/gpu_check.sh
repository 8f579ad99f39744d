#!/usr/bin/env bash
# Everything about the kernels that only a GPU can tell, in one call of under 8 minutes. Run from anywhere.
# Needs: a driver for CUDA 13, and an environment with torch for CUDA and the package's extra `gpu`, which on Linux is
# what `make setup` builds in .venv. PYTHON names the Python of another one.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
OUT=${OUT:-runs}
mkdir -p "$OUT"
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
status=0

if ! "$PYTHON" -c 'import torch, tinker_actors.kernels' 2> /dev/null; then
  echo "$PYTHON has no torch, or not what the package needs: run \`make setup\`, or name another Python in PYTHON" >&2
  exit 2
fi
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv 2> /dev/null || echo 'nvidia-smi is not in PATH'
timeout 270 "$PYTHON" -m benchmarks.gpu_check --json "$OUT/gpu_check.json"
case $? in
  0) ;;
  2) exit 2 ;; # it said what is missing
  124) echo "stopped after 270 s: what is above is all there is" && status=1 ;;
  *) status=1 ;;
esac

SANITIZER=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer || true)
if [ -n "$SANITIZER" ]; then
  for tool in memcheck racecheck synccheck; do
    echo
    echo "compute-sanitizer, $tool"
    # PyTorch's allocator hides overruns within its large blocks
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 65 "$SANITIZER" --tool "$tool" --error-exitcode 3 \
      "$PYTHON" -m benchmarks.gpu_check --quick | tail -n 5
    code=${PIPESTATUS[0]}
    if [ "$code" = 124 ]; then echo "$tool: stopped after 65 s, nothing found until then"
    elif [ "$code" != 0 ]; then echo "$tool: found something (exit $code)"; status=1; fi
  done
else
  echo "compute-sanitizer is in neither PATH nor /usr/local/cuda/bin: left out"
fi
exit $status
