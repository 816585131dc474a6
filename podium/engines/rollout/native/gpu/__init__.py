"""The native engine on a GPU: Triton kernels, a lean decode step, and CUDA graphs that replay it."""
