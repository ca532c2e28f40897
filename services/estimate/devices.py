"""Peak FLOP/s of GPUs, by the names that the driver gives them.

Imports only `re`, because benchmarks of the learner use this module with nothing but torch and
transformers installed.
"""

import re

PEAKS = (
    (r"B200", 2250e12),
    (r"H200 NVL", 835e12),
    (r"H200", 989e12),
    (r"H100 NVL", 835e12),
    (r"H100 PCIe", 756e12),
    (r"H100", 989e12),
    (r"A100", 312e12),
    (r"A40", 149.7e12),
    (r"A10", 125e12),
    (r"L40S", 362e12),
    (r"L4", 121e12),
    (r"RTX 4090$", 165.2e12),
    (r"RTX 3090$", 71e12),
)
"""FLOP/s: dense, bfloat16, sums in float32. Half the figures with sparsity of NVIDIA's data sheets;
GeForce: the white papers of the Ada and Ampere GA102 architectures."""


def peak_flops(name: str) -> float | None:
    """The peak of the device that CUDA calls `name`; None for a part of one, and unknown ones."""
    if "MIG" in name:
        return None
    return next((value for known, value in PEAKS if re.search(rf"\b{known}\b", name)), None)
