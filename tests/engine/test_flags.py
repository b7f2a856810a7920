import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.engine.flags import (
    TUNED_FLAGS,
    EngineFlags,
    FlagError,
    parse_command_line,
    parse_effective,
    parse_flags,
    render_flags,
    tuned_knob,
)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param([], EngineFlags(), id="nothing given is nothing known"),
        pytest.param(["--max-num-seqs", "64"], EngineFlags(max_num_seqs=64), id="value as its own argument"),
        pytest.param(["--max-num-seqs=64"], EngineFlags(max_num_seqs=64), id="value after an equals sign"),
        pytest.param(["--max_num_seqs", "64"], EngineFlags(max_num_seqs=64), id="underscores"),
        pytest.param(["--max-num_seqs=64"], EngineFlags(max_num_seqs=64), id="mixed separators"),
        pytest.param(["--max-num-s", "64"], EngineFlags(max_num_seqs=64), id="an abbreviated tuned flag"),
        pytest.param(["-tp", "2"], EngineFlags(tensor_parallel_size=2), id="-tp"),
        pytest.param(["-tp=2"], EngineFlags(tensor_parallel_size=2), id="-tp with an equals sign"),
        pytest.param(["--max-num-seqs=8", "--max-num-seqs=16"], EngineFlags(max_num_seqs=16), id="the last value wins"),
        pytest.param(["--max-model-len", "8k"], EngineFlags(max_model_len=8000), id="k is a thousand"),
        pytest.param(["--max-model-len", "8K"], EngineFlags(max_model_len=8192), id="K is 1,024"),
        pytest.param(["--max-model-len", "1M"], EngineFlags(max_model_len=2**20), id="M is 2^20"),
        pytest.param(["--max-model-len", "1m"], EngineFlags(max_model_len=10**6), id="m is a million"),
        pytest.param(["--max-model-len", "25.6k"], EngineFlags(max_model_len=25_600), id="decimals of a thousand"),
        pytest.param(["--max-model-len", "auto"], EngineFlags(max_model_len_auto=True), id="auto is no length"),
        pytest.param(["--max-model-len", "-1"], EngineFlags(max_model_len_auto=True), id="-1 is auto"),
        pytest.param(
            ["--max-num-batched-tokens", "2K"], EngineFlags(max_num_batched_tokens=2048), id="K for batched tokens"
        ),
        pytest.param(["vllm", "serve", "M", "--port", "1"], EngineFlags(model="M", port=1), id="vllm serve MODEL"),
        pytest.param(["serve", "M"], EngineFlags(model="M"), id="serve MODEL"),
        pytest.param(
            ["M", "--port=1"], EngineFlags(model="M", port=1), id="the image's entry point leaves MODEL first"
        ),
        pytest.param(["--port", "1", "M"], EngineFlags(model="M", port=1), id="MODEL last"),
        pytest.param(["--model", "M"], EngineFlags(model="M"), id="--model M"),
        pytest.param(
            ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "M"],
            EngineFlags(model="M"),
            id="the module form",
        ),
        pytest.param(
            ["M", "--served-model-name", "a", "b", "--port", "1"],
            EngineFlags(model="M", served_model_name="a", port=1),
            id="the first of several served names",
        ),
        pytest.param(["--enable-prefix-caching"], EngineFlags(enable_prefix_caching=True), id="a switch turned on"),
        pytest.param(
            ["--no_enable_prefix_caching"], EngineFlags(enable_prefix_caching=False), id="a switch turned off"
        ),
        pytest.param(
            ["--gpu-memory-utilization", "0.85"], EngineFlags(gpu_memory_utilization=0.85), id="a part of the memory"
        ),
        pytest.param(["--config", "c.yaml"], EngineFlags(config="c.yaml"), id="a file that may hold more"),
        pytest.param(
            ["M", "--trust-remote-code", "--dtype", "bfloat16", "--max-num-seqs=4", "--seed=1"],
            EngineFlags(model="M", max_num_seqs=4, unknown=("--trust-remote-code", "--dtype", "bfloat16", "--seed=1")),
            id="unknown flags are kept with their values",
        ),
        pytest.param(
            ["--kv-cache-dtype-skip-layers", "1"],
            EngineFlags(unknown=("--kv-cache-dtype-skip-layers", "1")),
            id="a longer flag is not the shorter one",
        ),
    ],
)
def test_reads_an_argument_vector(args: list[str], expected: EngineFlags) -> None:
    assert parse_flags(args) == expected


@pytest.mark.parametrize(
    ("args", "names"),
    [
        pytest.param(["--max-num-seqs", "many"], ("--max-num-seqs", "'many'", "such as 64"), id="not a number"),
        pytest.param(["--max-num-seqs", "8k"], ("--max-num-seqs", "'8k'"), id="vLLM takes no 8k for seats"),
        pytest.param(["--max-num-seqs=0"], ("--max-num-seqs", "below 1"), id="no seats"),
        pytest.param(["--max-num-seqs"], ("--max-num-seqs", "missing"), id="no value at the end"),
        pytest.param(["--max-num-seqs", "--port", "1"], ("--max-num-seqs", "missing"), id="no value before a flag"),
        pytest.param(["--max_model_len", "1.5K"], ("--max_model_len", "'1.5K'"), id="decimals of a power of two"),
        pytest.param(["--max-model-len", "1e5"], ("--max-model-len", "'1e5'"), id="Helm's scientific notation"),
        pytest.param(["-tp", "two"], ("-tp", "'two'"), id="the spelling that was used"),
        pytest.param(["--gpu-memory-utilization", "90"], ("--gpu-memory-utilization", "at most 1"), id="per cent"),
        pytest.param(["--port", "99999"], ("--port", "65535"), id="no such port"),
        pytest.param(["--kv-cache-dtype="], ("--kv-cache-dtype", "empty"), id="an empty value"),
    ],
)
def test_names_a_malformed_flag_and_the_remedy(args: list[str], names: tuple[str, ...]) -> None:
    with pytest.raises(FlagError) as refused:
        parse_flags(args)
    assert [name for name in names if name not in str(refused.value)] == []


def test_reads_a_command_line_as_a_shell_would() -> None:
    flags = parse_command_line("vllm serve 'my model' --max-num-seqs 8")
    assert (flags.model, flags.max_num_seqs) == ("my model", 8)


def test_an_open_quote_is_an_error_with_a_remedy() -> None:
    with pytest.raises(FlagError, match="Close the quotes"):
        parse_command_line("vllm serve 'my model")


@pytest.mark.parametrize(
    ("argument", "knob"),
    [
        ("--max-num-seqs", "max-num-seqs"),
        ("--max_num-seqs=8", "max-num-seqs"),
        ("--max-num-s", "max-num-seqs"),
        ("--max-model", "max-model-len"),
        ("--kv_cache_dtype", "kv-cache-dtype"),
        ("-tp", "tensor-parallel-size"),
        ("-tp=2", "tensor-parallel-size"),
        ("--tensor", "tensor-parallel-size"),
        ("--max-num-batched-tokens", None),
        ("--kv-cache-dtype-skip-layers", None),
        ("--trust-remote-code", None),
        ("64", None),
        ("max-num-seqs", None),
    ],
)
def test_recognises_a_tuned_knob_in_any_spelling(argument: str, knob: str | None) -> None:
    assert tuned_knob(argument) == knob


def test_every_documented_spelling_is_recognised() -> None:
    assert {tuned_knob(flag): flags for flags in TUNED_FLAGS.values() for flag in flags} == TUNED_FLAGS


@given(
    max_num_seqs=st.none() | st.integers(1, 4096),
    max_model_len=st.none() | st.integers(1, 10**7),
    kv_cache_dtype=st.none() | st.sampled_from(["auto", "fp8", "fp8_e5m2"]),
    tensor_parallel_size=st.none() | st.integers(1, 64),
)
def test_what_is_rendered_is_read_back(**knobs: int | str | None) -> None:
    assert parse_flags(render_flags(**knobs)) == EngineFlags(**knobs)  # type: ignore[arg-type]


@given(st.lists(st.text(max_size=12) | st.sampled_from(["--max-num-seqs", "-tp", "--x", "=", "8", "serve"])))
def test_no_argument_vector_breaks_the_parser(args: list[str]) -> None:
    try:
        parse_flags(args)
    except FlagError as refused:
        assert refused.flag  # noqa: PT017


EFFECTIVE = "(APIServer pid=1) INFO 11-20 22:09:37 [api_utils.py:286] non-default args: "


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param("", None, id="no line, nothing proven"),
        pytest.param(EFFECTIVE + "{}", EngineFlags(), id="nothing but defaults"),
        pytest.param(
            EFFECTIVE + "{'model_tag': 'm', 'max_num_seqs': 16, 'served_model_name': ['a', 'b'], 'seed': 1}",
            EngineFlags(model="m", max_num_seqs=16, served_model_name="a", unknown=("seed",)),
            id="vLLM's names and values",
        ),
        pytest.param(EFFECTIVE + "{'max_model_len': -1}", EngineFlags(max_model_len_auto=True), id="-1 is auto"),
        pytest.param(
            EFFECTIVE + "{'mode': <Mode.NONE: 0>, 'cc': Config(max_num_seqs=1), 'max_num_seqs': 16}",
            EngineFlags(max_num_seqs=16, unknown=("cc", "mode")),
            id="values that are no literals are unknown, those inside them do not count",
        ),
        pytest.param(
            EFFECTIVE + "{'max_num_seqs': 1}\n" + EFFECTIVE + "{'max_num_seqs': 2}",
            EngineFlags(max_num_seqs=2),
            id="the last start counts",
        ),
        pytest.param(
            EFFECTIVE + "{'max_num_seqs': 'sixteen', 'tensor_parallel_size': True}",
            EngineFlags(unknown=("max_num_seqs", "tensor_parallel_size")),
            id="another type than ours is unknown",
        ),
        pytest.param(EFFECTIVE + "{'max_num_seqs': 1", None, id="a line that was cut off"),
        pytest.param(EFFECTIVE + "{'max_num_seqs': 1, }}", None, id="a line that is no dict"),
    ],
)
def test_reads_what_the_engine_says_it_took(log: str, expected: EngineFlags | None) -> None:
    assert parse_effective(log) == expected
