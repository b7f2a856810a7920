"""From a command line and an environment to an engine, or to vLLM's own refusal."""

from typing import Any

import pytest

from vllm_autotuner.engine.flags import EngineFlags, flags_from, parse_flags
from vllm_autotuner.engine.startup_log import StartupReason, parse_startup_failure
from vllm_autotuner.simulation import environment as settings_module
from vllm_autotuner.simulation.arguments import ACCEPTED, SIMULATED, parse_arguments
from vllm_autotuner.simulation.configuration import EngineConfig, Profile, StartupRefused, configure
from vllm_autotuner.simulation.environment import SettingsError, settings_from
from vllm_autotuner.simulation.sequence import SchedulingPolicy
from vllm_autotuner.simulation.startup import refusal
from vllm_autotuner.simulation.step_duration import StepTimes, step_law


def configured(*args: str, **profile: Any) -> EngineConfig:
    return configure(parse_flags(args), profile=Profile(**profile))


def test_defaults_are_those_of_the_profile() -> None:
    config = configured("meta/llama")
    assert (config.max_num_seqs, config.max_model_len, config.max_num_batched_tokens) == (1024, 131_072, 8192)
    assert config.num_gpu_blocks * config.block_size == 420_864
    assert config.model_name == "meta/llama"


@pytest.mark.parametrize(
    ("args", "blocks"),
    [
        pytest.param([], 1000, id="the profile's pool"),
        pytest.param(["--kv-cache-dtype=fp8"], 2000, id="fp8 doubles it"),
        pytest.param(["--kv-cache-dtype=fp8_e5m2"], 2000, id="so does its other name"),
        pytest.param(["-tp=2"], 2500, id="TP 2 splits the heads and frees half the weights per GPU"),
        pytest.param(["-tp=4"], 2750, id="beyond the KV heads only the weights shrink"),
        pytest.param(["--gpu-memory-utilization=0.82"], 800, id="less memory"),
        pytest.param(["--block-size=32"], 500, id="the same tokens in larger blocks"),
        pytest.param(["--kv-cache-dtype=fp8", "--num-gpu-blocks-override=40"], 40, id="an override is final"),
    ],
)
def test_the_pool_follows_the_flags(args: list[str], blocks: int) -> None:
    profile = {"gpu_blocks": 1000, "kv_heads": 2, "weights_to_pool": 0.5, "memory_to_pool": 2.0}
    assert configured("--max-model-len=512", *args, **profile).num_gpu_blocks == blocks


def test_auto_takes_the_longest_that_fits() -> None:
    assert configured("--max-model-len=auto", gpu_blocks=11).max_model_len == 160
    assert configured("--max-model-len=auto").max_model_len == 131_072


def test_the_default_token_budget_grows_with_max_num_seqs_but_a_given_one_does_not() -> None:
    assert configured("--max-num-seqs=9000").max_num_batched_tokens == 9000
    with pytest.raises(StartupRefused, match="must be greater than or equal to max_num_seqs"):
        configured("--max-num-seqs=9000", "--max-num-batched-tokens=8192")


@pytest.mark.parametrize(
    ("args", "profile", "reason", "length"),
    [
        pytest.param(["-tp=3"], {}, StartupReason.HEADS_NOT_DIVISIBLE, None, id="heads"),
        pytest.param(
            ["--max-model-len=100000"], {"model_max_len": 8192}, StartupReason.LENGTH_OVER_MODEL, 8192, id="length"
        ),
        pytest.param(
            ["--max-model-len=8192", "--num-gpu-blocks-override=10", "--block-size=128"],
            {},
            StartupReason.INSUFFICIENT_KV_CACHE,
            1152,  # (10 - 1) * 128, as in the real log
            id="one longest sequence does not fit",
        ),
        pytest.param(
            ["--gpu-memory-utilization=0.2"], {}, StartupReason.INSUFFICIENT_KV_CACHE, None, id="nothing is left"
        ),
        pytest.param(
            ["--max-num-batched-tokens=8"], {}, StartupReason.INVALID_FLAG, None, id="a budget below the seats"
        ),
    ],
)
def test_a_refused_start_reads_as_the_real_one(
    args: list[str], profile: dict[str, Any], reason: StartupReason, length: int | None
) -> None:
    with pytest.raises(StartupRefused) as refused:
        configured(*args, **profile)
    failure = parse_startup_failure(refusal(refused.value, pid=1, at="11-20 22:09:37"))
    assert failure is not None
    assert (failure.reason, failure.suggested_max_model_len) == (reason, length)
    assert failure.message == str(refused.value)


def test_the_suggested_length_starts() -> None:
    args = ["--num-gpu-blocks-override=10", "--block-size=128"]
    assert configured(*args, "--max-model-len=1152").max_model_len == 1152
    with pytest.raises(StartupRefused):
        configured(*args, "--max-model-len=1153")


def test_without_chunked_prefill_the_budget_holds_the_longest_prompt() -> None:
    config = configured("--no-enable-chunked-prefill", "--max-model-len=20000")
    assert (config.enable_chunked_prefill, config.max_num_batched_tokens) == (False, 20_000)
    with pytest.raises(StartupRefused, match=r"\(8192\) is smaller than max_model_len \(20000\)"):
        configured("--no-enable-chunked-prefill", "--max-model-len=20000", "--max-num-batched-tokens=8192")


def test_the_scheduling_policy_is_first_come_first_served_unless_given() -> None:
    assert configured().scheduling_policy is SchedulingPolicy.FCFS
    assert configured("--scheduling-policy=priority").scheduling_policy is SchedulingPolicy.PRIORITY


@pytest.mark.parametrize(
    ("dtype", "fp8_kv_read", "factor"),
    [("auto", 0.5, 1.0), ("fp8", 1.0, 1.0), ("fp8", 0.5, 0.5), ("fp8_e5m2", 0.5, 0.5)],
)
def test_fp8_kv_changes_reading_only_where_the_profile_says_so(dtype: str, fp8_kv_read: float, factor: float) -> None:
    law = configured(f"--kv-cache-dtype={dtype}", step=StepTimes(fp8_kv_read=fp8_kv_read)).law
    assert law.per_held_token == pytest.approx(factor * configured().law.per_held_token)
    assert law.base == configured().law.base


def test_tensor_parallelism_divides_only_the_weights_part_of_a_step() -> None:
    one, two, sixteen = (step_law(StepTimes(), tensor_parallel_size=tp, kv_heads=8) for tp in (1, 2, 16))
    assert 0.6 < two.base / one.base < 0.7, "measured 0.63 to 0.66"
    assert two.per_held_token == one.per_held_token / 2
    assert sixteen.per_held_token == one.per_held_token / 8, "KV heads are copied beyond one per GPU"
    assert 0.5 < two.per_prefill_token / one.per_prefill_token < 0.6, "measured 0.57 to 0.59"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(
            ["serve", "./model", "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "8021",
             "--max-model-len", "2048", "--enforce-eager", "--tensor-parallel-size", "3"],
            {"model_tag": "./model", "host": "127.0.0.1", "port": 8021, "model": "./model", "max_model_len": 2048,
             "enforce_eager": True, "served_model_name": ["tiny"], "tensor_parallel_size": 3},
            id="the dict of tp3.log",
        ),
        pytest.param(["serve", "--model", "m", "-tp=2"], {"model_tag": "m", "model": "m", "tensor_parallel_size": 2},
                     id="--model M moves to the front"),
        pytest.param(["serve", "m", "--max_num_seqs=8"], {"model_tag": "m", "model": "m", "max_num_seqs": 8},
                     id="underscores"),
        pytest.param(["serve", "m", "--max-num-s=8"], {"model_tag": "m", "model": "m", "max_num_seqs": 8},
                     id="an abbreviation"),
        pytest.param(["serve", "m", "--port=8000", "-tp=1", "--kv-cache-dtype=auto"],
                     {"model_tag": "m", "model": "m"}, id="a value at its default is no non-default arg"),
        pytest.param(["serve", "m", "--max-model-len=8K"], {"model_tag": "m", "model": "m", "max_model_len": 8192},
                     id="8K"),
        pytest.param(["serve", "m", "--max-model-len=auto"], {"model_tag": "m", "model": "m", "max_model_len": -1},
                     id="auto"),
        pytest.param(["serve"], {}, id="vLLM has a default model"),
    ],
)  # fmt: skip
def test_reads_the_command_line_as_vllm(argv: list[str], expected: dict[str, Any]) -> None:
    given = parse_arguments(argv)
    assert given == expected
    assert [name for name in given if name in expected] == list(given), "in vLLM's order"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        pytest.param(
            ["--max-num-sequences", "8"],
            "vllm: error: unrecognized arguments: --max-num-sequences 8\n",
            id="no such flag",
        ),
        pytest.param(
            ["--max-num-seqs", "8k"],
            "vllm serve: error: argument --max-num-seqs: invalid int value: '8k'\n",
            id="no such number",
        ),
        pytest.param(
            ["--max-model-len", "1e5"],
            "vllm serve: error: argument --max-model-len: invalid human_readable_int_or_auto value: '1e5'\n",
            id="no such length",
        ),
        pytest.param(["--kv-cache-dtype", "int4"], "invalid choice: 'int4'", id="no such dtype"),
        pytest.param(["--max-num-seqs"], "expected one argument\n", id="no value"),
        pytest.param(["--pipeline-parallel-size", "2"], "unrecognized arguments", id="what is not simulated"),
    ],
)
def test_refuses_a_command_line_as_vllm(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_arguments(["serve", "m", *argv])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    failure = parse_startup_failure(said)
    assert failure is not None
    assert failure.reason is StartupReason.INVALID_FLAG


def test_what_is_simulated_reaches_the_engine() -> None:
    flags = flags_from(parse_arguments(["serve", "m", "--max-num-seqs=8", "--kv-cache-dtype=fp8", "--enforce-eager"]))
    assert flags == EngineFlags(model="m", max_num_seqs=8, kv_cache_dtype="fp8", enforce_eager=True)
    assert not SIMULATED.keys() & ACCEPTED.keys()


def test_settings_come_from_the_environment() -> None:
    settings = settings_from(
        {
            "SIM_GPU_BLOCKS": "256",
            "SIM_STEP_BASE_MS": "12.5",
            "SIM_WEDGE_AFTER": "30",
            "SIM_STARTUP_SECONDS": "2",
            "SIM_SEED": "",
            "PATH": "/bin",
        }
    )
    assert (settings.profile.gpu_blocks, settings.profile.step.base_ms) == (256, 12.5)
    assert (settings.faults.wedge_after, settings.startup_seconds, settings.seed) == (30.0, 2.0, 0)


def test_every_setting_is_documented() -> None:
    with pytest.raises(SettingsError) as refused:
        settings_from({"SIM_": "1"})
    names = str(refused.value).split("Known settings: ")[1].split(", ")
    assert [name for name in names if name not in (settings_module.__doc__ or "")] == []


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("SIM_GPU_BLOKS", "1", "SIM_GPU_BLOKS: unknown setting. Known settings: SIM_ALL_REDUCE_MS"),
        ("SIM_GPU_BLOCKS", "many", "SIM_GPU_BLOCKS: 'many' is not a number"),
        ("SIM_GPU_BLOCKS", "1.5", "SIM_GPU_BLOCKS: '1.5' is not a number"),
        ("SIM_STARTUP_SECONDS", "-1", "SIM_STARTUP_SECONDS: '-1' is below 0"),
        ("SIM_STEP_BASE_MS", "nan", "SIM_STEP_BASE_MS: 'nan' is below 0"),
    ],
)
def test_a_setting_that_cannot_be_read_is_named(name: str, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings_from({name: text})
    assert str(refused.value).startswith(words)
