from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.engine.flags import parse_effective
from vllm_autotuner.engine.startup_log import StartupReason, parse_startup_failure

LOGS = Path(__file__).parents[1] / "data/vllm-0.32/startup-failures"
REAL = {
    "bad-flag.log": (StartupReason.INVALID_FLAG, "--max-num-sequences 8", None),
    "tp3.log": (StartupReason.HEADS_NOT_DIVISIBLE, "heads (8) must be divisible by tensor parallel size (3).", None),
    "len-over-model.log": (StartupReason.LENGTH_OVER_MODEL, "max_model_len (100000) is greater", 8192),
    "fp8-on-avx2.log": (StartupReason.KV_TYPE_UNSUPPORTED, "FP8 KV cache on CPU requires x86 with AVX-512", None),
    "kv-too-small.log": (StartupReason.INSUFFICIENT_KV_CACHE, "max seq len (8192)", 1152),
}


def real(name: str) -> str:
    return (LOGS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REAL)
def test_names_the_cause_of_a_real_failure(name: str) -> None:
    reason, words, length = REAL[name]
    failure = parse_startup_failure(real(name))
    assert failure is not None
    assert (failure.reason, failure.suggested_max_model_len) == (reason, length)
    assert words in failure.message
    assert "[type=value_error" not in failure.message


def test_every_real_log_has_a_row() -> None:
    assert {path.name for path in LOGS.glob("*.log")} == set(REAL)


@pytest.mark.parametrize(
    ("name", "kept", "reason"),
    [
        pytest.param("bad-flag.log", 2048, StartupReason.INVALID_FLAG, id="bad flag"),
        pytest.param("tp3.log", 2048, StartupReason.HEADS_NOT_DIVISIBLE, id="heads"),
        pytest.param("len-over-model.log", 2048, StartupReason.LENGTH_OVER_MODEL, id="length"),
        pytest.param("fp8-on-avx2.log", 2048, StartupReason.UNKNOWN, id="KV type: the cause is lost"),
        pytest.param("fp8-on-avx2.log", 10240, StartupReason.KV_TYPE_UNSUPPORTED, id="KV type: a longer end has it"),
        pytest.param("kv-too-small.log", 2048, StartupReason.UNKNOWN, id="KV: the cause is lost, so do not guess"),
        pytest.param("kv-too-small.log", 4096, StartupReason.INSUFFICIENT_KV_CACHE, id="KV: a longer end has it"),
    ],
)
def test_reads_a_termination_message(name: str, kept: int, reason: StartupReason) -> None:
    end = real(name).encode()[-kept:].decode(errors="replace")
    failure = parse_startup_failure(end)
    assert failure is not None
    assert failure.reason is reason


def test_a_lost_cause_is_told_as_lost() -> None:
    failure = parse_startup_failure(real("kv-too-small.log")[-2048:])
    assert failure is not None
    assert failure.message.startswith("RuntimeError: Engine core initialization failed. See root cause above.")


NOISE = (
    "Triton is installed, but doesn't include CPU backend. Disabling Triton.\n"
    "(APIServer pid=1) WARNING 11-20 22:09:37 [system_utils.py:255] This can cause errors like `OSError: [Errno 24]`.\n"
    "(APIServer pid=1) INFO 11-20 22:09:37 [model.py:733] Resolved architecture: LlamaForCausalLM\n"
)
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"


@pytest.mark.parametrize(
    ("log", "reason", "message"),
    [
        pytest.param(
            NOISE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n" + WRAPPER,
            StartupReason.OUT_OF_MEMORY,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            id="the GPU's memory ran out",
        ),
        pytest.param(
            "ValueError: Free memory on device cuda:0 (3.2/23.4 GiB) on startup is less than desired GPU memory "
            "utilization (0.96, 22.49 GiB).",
            StartupReason.OUT_OF_MEMORY,
            "Free memory on device cuda:0 (3.2/23.4 GiB) on startup is less than desired GPU memory utilization "
            "(0.96, 22.49 GiB).",
            id="others hold the memory",
        ),
        pytest.param(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n",
            StartupReason.INSUFFICIENT_KV_CACHE,
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
            id="no pool at all",
        ),
        pytest.param(
            "ValueError: FP8 KV cache is not supported by the Triton attention backend on NVIDIA A100 (compute "
            "capability 8.0); native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype bfloat16.",
            StartupReason.KV_TYPE_UNSUPPORTED,
            "FP8 KV cache is not supported by the Triton attention backend on NVIDIA A100 (compute "
            "capability 8.0); native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype bfloat16.",
            id="a GPU without fp8",
        ),
        pytest.param(
            "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head=64). Reasons: "
            "{FLASH_ATTN: [kv_cache_dtype not supported], TRITON_ATTN: [head_size not supported]}.",
            StartupReason.KV_TYPE_UNSUPPORTED,
            "No valid attention backend found for cuda with AttentionSelectorConfig(head=64). Reasons: "
            "{FLASH_ATTN: [kv_cache_dtype not supported], TRITON_ATTN: [head_size not supported]}.",
            id="no attention backend takes the type",
        ),
        pytest.param(
            "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head=7). Reasons: "
            "{FLASH_ATTN: [head_size not supported]}.",
            StartupReason.UNKNOWN,
            "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head=7). Reasons: "
            "{FLASH_ATTN: [head_size not supported]}.",
            id="no attention backend, and the type of the cache is not why",
        ),
        pytest.param(
            "  Value error, max_num_batched_tokens (6) must be greater than or equal to max_num_seqs (8). "
            "[type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]\n",
            StartupReason.INVALID_FLAG,
            "max_num_batched_tokens (6) must be greater than or equal to max_num_seqs (8).",
            id="two flags contradict each other",
        ),
        pytest.param(
            "vllm serve: error: argument --max-num-seqs: invalid int value: 'x'\n",
            StartupReason.INVALID_FLAG,
            "vllm serve: error: argument --max-num-seqs: invalid int value: 'x'",
            id="a malformed value",
        ),
        pytest.param(
            NOISE + "(Worker pid=2) ERROR 11-20 22:08:01 [core.py:15] RuntimeError: NCCL error: unhandled\n" + WRAPPER,
            StartupReason.UNKNOWN,
            "RuntimeError: NCCL error: unhandled",
            id="an unknown cause is told, not the wrapper around it",
        ),
        pytest.param(
            "1 validation error for SchedulerConfig\n  Value error, something new [type=value_error, input_value=1]\n",
            StartupReason.UNKNOWN,
            "something new",
            id="an unknown value error",
        ),
        pytest.param(
            NOISE + "(EngineCore pid=2) ERROR 11-20 22:08:01 [core.py:15] EngineCore failed to start.\n",
            StartupReason.UNKNOWN,
            "EngineCore failed to start.",
            id="an error without an exception",
        ),
        pytest.param(
            "(W pid=2) WARNING 11-20 22:08:01 [a.py:1] CUDA out of memory is possible.\nKeyError: 'layers.0'\n",
            StartupReason.UNKNOWN,
            "KeyError: 'layers.0'",
            id="a warning that quotes a cause is not the cause",
        ),
    ],
)
def test_reads_other_failures(log: str, reason: StartupReason, message: str) -> None:
    failure = parse_startup_failure(log)
    assert failure is not None
    assert (failure.reason, failure.message) == (reason, message)


@pytest.mark.parametrize(
    "log",
    [
        pytest.param("", id="an empty log"),
        pytest.param(NOISE, id="only noise"),
        pytest.param(
            NOISE + "INFO:     Application startup complete.\n(E pid=1) ERROR 11-20 22:08:01 [c.py:1] ValueError: x\n",
            id="what fails once the server is up is no start-up failure",
        ),
    ],
)
def test_sees_no_failure_where_there_is_none(log: str) -> None:
    assert parse_startup_failure(log) is None


@given(st.text())
def test_no_text_breaks_the_parser(log: str) -> None:
    parse_startup_failure(log)
    parse_effective("non-default args: {" + log + "}")


@given(st.integers(0, 18_331))
def test_a_log_cut_anywhere_gives_the_cause_or_unknown(start: int) -> None:
    failure = parse_startup_failure(real("kv-too-small.log")[start:])
    assert failure is None or failure.reason in {StartupReason.INSUFFICIENT_KV_CACHE, StartupReason.UNKNOWN}
