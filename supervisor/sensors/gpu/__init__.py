"""NVIDIA devices, read by NVML in a process of its own."""
