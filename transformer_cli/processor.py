"""What PyTorch and oneDNN tell of this processor: nothing is measured."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch


@cache
def capabilities() -> Mapping[str, Any]:
    """By PyTorch's names. Older versions tell little, and of other processors than x86 nothing."""
    if hasattr(torch.cpu, "get_capabilities"):
        found: Mapping[str, Any] = torch.cpu.get_capabilities()
        return found
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return {"avx512_bf16": torch.cpu._is_avx512_bf16_supported()} if is_x86 else {}


def computes_bf16() -> bool:
    """Whether oneDNN computes products in bf16, be it by imitating them."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def has_bf16_instructions() -> bool | None:
    """Whether products in bf16 have instructions of their own; None where nobody tells. With AVX-512 alone oneDNN
    imitates them, in twice the time of fp32."""
    told: bool | None = capabilities().get("avx512_bf16")
    return told if computes_bf16() else False


def gains_in_fp32() -> bool:
    """Whether oneDNN is faster than MKL in fp32, too: with AVX-512, but not on Intel's own processors, where MKL uses
    every instruction, and has less to do before each product. With AVX2 few rows would lose what many gain. Older
    versions of PyTorch do not tell whose a processor is."""
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and "Intel" not in capabilities().get("cpu_name", "")
    )


def gains_without_tiles() -> bool:
    """Whether the processor multiplies in bf16 by AVX-512 alone, as code of ours can, which is as fast as oneDNN then.
    Of Intel's own those without tiles (AMX) were not measured; where there are some, and the system does not allow
    them, pairs take three times as long. Older versions of PyTorch do not tell."""
    told = capabilities()
    is_another = "Intel" not in told.get("cpu_name", "Intel")
    return bool(told.get("avx512_bf16")) and told.get("amx_bf16") is False and is_another


def imitates(precision: str, device: str) -> bool:
    """Whether a CPU has no instructions for such products: PyTorch's own take a hundred times as long as fp32's, and
    more (0.5 GFLOP/s for 75 to 145, two cores with AVX2). Only oneDNN tells; without it, as on a Mac, there are only
    PyTorch's own."""
    told = {"bf16": "_is_mkldnn_bf16_supported", "fp16": "_is_mkldnn_fp16_supported"}.get(precision)
    if device != "cpu" or told is None:
        return False
    return not torch.backends.mkldnn.is_available() or not getattr(torch.ops.mkldnn, told, lambda: True)()
