"""Parts of `benchmarks.gpu_check`."""
