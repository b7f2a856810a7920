"""The values that vLLM takes for flags that are left out."""

import pytest

from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.engine.defaults import default_max_num_seqs


@pytest.mark.parametrize(
    ("gpu", "step_tokens", "slots"),
    [
        ("NVIDIA-H100-80GB-HBM3", None, 1024),
        ("H200", 8192, 1024),
        ("H200", 512, 512),
        ("A100-SXM4-80GB", None, 256),
        ("L40S", None, 256),
    ],
)
def test_large_gpus_have_more_slots_by_default(gpu: str, step_tokens: int | None, slots: int) -> None:
    found = Catalogue().gpu(gpu)
    assert found is not None
    assert default_max_num_seqs(found, step_tokens=step_tokens) == slots
