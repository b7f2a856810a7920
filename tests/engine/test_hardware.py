"""GPUs by the labels that nodes, clouds and benchmarks give them."""

import pytest

from vllm_autotuner.engine.hardware import GPUS, Gpu, gpu_named


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("H100-SXM-80GB", "H100"),
        ("NVIDIA-H100-PCIe", "H100-PCIE"),
        ("NVIDIA-H100-NVL", "H100-NVL"),
        ("H200-SXM-141GB", "H200"),
        ("NVIDIA-A100-SXM4-40GB", "A100"),
        ("NVIDIA-A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA-A100-80GB-PCIe", "A100-80GB-PCIE"),
        ("NVIDIA-A10G", "A10G"),
        ("NVIDIA-A10", "A10"),
        ("NVIDIA-L40S", "L40S"),
        ("nvidia l4", "L4"),
        ("Tesla-T4", "T4"),
        ("NVIDIA-RTX-6000-Ada-Generation", "6000-ADA"),
        ("NVIDIA-B200", "B200"),
        ("NVIDIA-GH200-480GB", "GH200"),
    ],
)
def test_a_label_is_known_by_its_words(label: str, name: str) -> None:
    found = gpu_named(label)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("label", ["", "gpu", "H1000", "NVIDIA", "AMD-Instinct-MI300X", "TPU-v5e"])
def test_what_is_not_in_the_table_is_unknown(label: str) -> None:
    assert gpu_named(label) is None


def test_the_users_own_rows_come_first() -> None:
    own = Gpu(name="ours", words=("H100",), memory_gib=64, bandwidth=2e12, flops=5e14, compute_capability=(9, 0))
    assert gpu_named("NVIDIA-H100-80GB-HBM3", more=[own]) is own


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_row_is_found_by_its_own_name_and_plausible(gpu: Gpu) -> None:
    assert gpu_named(gpu.name) is gpu
    assert 10 < gpu.memory_gib < 300
    # Bytes per second against operations per second: the ridge of every GPU lies between 30 and 500 per byte.
    assert 30 < gpu.flops / gpu.bandwidth < 500
