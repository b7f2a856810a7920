"""How many tokens the KV cache holds: bytes per token, and what a change of flags does to the pool.

Apart from the step time, because memory follows from arithmetic and time has to be measured.
The pool of a running engine is read, not computed; formulas only carry it over to other flags (`pool_after`).
Must not: assume a shape. An UnknownGeometry gives Unknown.
"""

from vllm_autotuner.engine.geometry import Geometry

__all__ = ["kv_bytes_per_token_per_gpu"]


def kv_bytes_per_token_per_gpu(geometry: Geometry, *, tensor_parallel_size: int, bytes_per_value: int = 2) -> int:
    """Return what a token holds on each GPU. Beyond one KV head per GPU, heads are copied: no smaller than one.

    Worked: 64 layers, 8 KV heads of 128 in 16 bit: 262,144 at TP 1, 65,536 at TP 4, 32,768 at TP 8 and at TP 16.
    """
    heads = max(1, -(-geometry.kv_heads // tensor_parallel_size))
    return 2 * geometry.layers * heads * geometry.head_dim * bytes_per_value
