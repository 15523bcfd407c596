"""Work that is recorded once and then repeated: as a CUDA graph, or on a CPU as a script of calls."""
