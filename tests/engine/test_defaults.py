"""The values that vLLM takes for flags that are left out."""

import pytest

from vllm_autotuner.engine.catalogue import Catalogue
from vllm_autotuner.engine.defaults import default_max_num_seqs


@pytest.mark.parametrize(
    ("gpu", "slots"),
    [("NVIDIA-H100-80GB-HBM3", 1024), ("H200", 1024), ("A100-SXM4-80GB", 256), ("L40S", 256), ("Unheard-Of", 256)],
)
def test_large_gpus_have_more_slots_by_default(gpu: str, slots: int) -> None:
    assert default_max_num_seqs(Catalogue().gpu(gpu)) == slots
