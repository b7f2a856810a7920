"""A container's command line: found wherever it stands, and changed in one flag only."""

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_autotuner.engine.command_line import (
    CommandLine,
    Field,
    Unreadable,
    changed,
    command_line,
    removed,
    serving_containers,
)
from vllm_autotuner.engine.flags import FlagError

SCRIPT = "set -e\nexec vllm serve example/tiny --max-num-seqs 4 \\\n  --seed 1"


def container(**fields: Any) -> dict[str, Any]:
    return {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0"} | fields


@pytest.mark.parametrize(
    ("found", "field", "seats"),
    [
        pytest.param(container(args=["m", "--max-num-seqs", "4"]), Field.ARGS, 4, id="the image's entry point"),
        pytest.param(container(), Field.ARGS, None, id="nothing is given"),
        pytest.param(
            container(command=["vllm", "serve", "m", "--max-num-seqs=4"]), Field.ARGS, 4, id="all in the command"
        ),
        pytest.param(
            container(command=["vllm", "serve"], args=["m", "--max-num-seqs=4"]), Field.ARGS, 4, id="command and args"
        ),
        pytest.param(
            container(command=["vllm", "serve", "m", "--max-num-seqs=4"], args=["--seed=1"]),
            Field.ARGS,
            4,
            id="a flag in the command, others in args",
        ),
        pytest.param(
            container(command=["python3", "-m", "vllm.entrypoints.openai.api_server"], args=["--max-num-seqs=4"]),
            Field.ARGS,
            4,
            id="the module",
        ),
        pytest.param(container(command=["/bin/sh", "-c"], args=[SCRIPT]), Field.ARGS, 4, id="a script in args"),
        pytest.param(container(command=["bash", "-lc", SCRIPT]), Field.COMMAND, 4, id="a script in the command"),
        pytest.param(
            container(args=["m", "--max-num-seqs", "$(SEATS)"], env=[{"name": "SEATS", "value": "4"}]),
            Field.ARGS,
            4,
            id="a variable that is written out",
        ),
        pytest.param(
            container(command=["sh", "-c", "vllm serve m --max-num-seqs $(S)"], env=[{"name": "S", "value": "4"}]),
            Field.COMMAND,
            4,
            id="a variable of Kubernetes in a script",
        ),
        pytest.param(
            container(command=["tini", "--"], args=["vllm", "serve", "m", "--max-num-seqs=4"]), Field.ARGS, 4, id="tini"
        ),
        pytest.param(container(command=["/start.sh"], args=["--max-num-seqs=4"]), Field.ARGS, 4, id="a program before"),
        pytest.param(
            container(args=["--max-num-seqs=4", "--served-model-name", "vllm"]), Field.ARGS, 4, id="a model named vllm"
        ),
        pytest.param(
            container(command=["sh", "-c", "/prepare && vllm serve m --max-num-seqs=4 2>&1 | tee /log"]),
            Field.COMMAND,
            4,
            id="a script with other commands",
        ),
    ],
)
def test_finds_the_flags(found: dict[str, Any], field: Field, seats: int | None) -> None:
    line = command_line(found)
    assert (line.field, line.flags.max_num_seqs) == (field, seats)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(
            container(args=["--max-num-seqs", "$(SEATS)"], env=[{"name": "SEATS", "valueFrom": {}}]),
            id="a variable from elsewhere",
        ),
        pytest.param(container(command=["sh", "-c", "vllm serve m --max-num-seqs $SEATS"]), id="a shell variable"),
        pytest.param(container(command=["sh", "-c", "vllm serve $(cat model)"]), id="a command substitution"),
        pytest.param(container(command=["sh", "-c", "vllm serve 'm"]), id="an open quote"),
        pytest.param(container(command=["sh", "-c", "/start.sh"]), id="a script that hides it"),
        pytest.param(container(command=["sh", "-c", "vllm serve a & vllm serve b"]), id="two engines"),
    ],
)
def test_what_cannot_be_read_is_said(found: dict[str, Any]) -> None:
    line = command_line(found)
    with pytest.raises(FlagError):
        _ = line.flags
    assert isinstance(changed(line, knob="max-num-seqs", value=8), Unreadable)


@pytest.mark.parametrize(
    ("found", "knob", "value", "words"),
    [
        pytest.param(
            container(args=["m", "--max-num-seqs", "4", "--seed=1"]),
            "max-num-seqs",
            8,
            ("m", "--max-num-seqs", "8", "--seed=1"),
            id="in its place",
        ),
        pytest.param(container(args=["--max_num_seqs=4"]), "max-num-seqs", 8, ("--max_num_seqs=8",), id="own spelling"),
        pytest.param(container(args=["-tp", "2"]), "tensor-parallel-size", 4, ("-tp", "4"), id="the short form"),
        pytest.param(container(args=["m"]), "kv-cache-dtype", "fp8", ("m", "--kv-cache-dtype=fp8"), id="appended"),
        pytest.param(
            container(args=["--max-model-len", "auto"]), "max-model-len", 4096, ("--max-model-len", "4096"), id="auto"
        ),
        pytest.param(
            container(args=["--max-num-seqs=2", "--max-num-seqs=4"]),
            "max-num-seqs",
            8,
            ("--max-num-seqs=2", "--max-num-seqs=8"),
            id="the last one, which wins",
        ),
        pytest.param(
            container(command=["vllm", "serve", "m", "--max-num-seqs=4"], args=["--seed=1"]),
            "max-num-seqs",
            8,
            ("--seed=1", "--max-num-seqs=8"),
            id="given in the command, won over in args",
        ),
        pytest.param(
            container(command=["vllm", "serve", "m", "--max-num-seqs", "4"]),
            "max-num-seqs",
            8,
            ("--max-num-seqs=8",),
            id="given in the command, without any args",
        ),
        pytest.param(
            container(command=["sh", "-c", SCRIPT]),
            "max-num-seqs",
            16,
            ("sh", "-c", SCRIPT.replace("seqs 4", "seqs 16")),
            id="inside a script",
        ),
        pytest.param(
            container(command=["sh", "-c", "vllm serve m --enable-prefix-caching --max-num-seqs 4"]),
            "max-num-seqs",
            16,
            ("sh", "-c", "vllm serve m --enable-prefix-caching --max-num-seqs 16"),
            id="inside a script, after a switch",
        ),
        pytest.param(
            container(command=["sh", "-c"], args=["exec vllm serve m --seed 1\n"]),
            "max-num-seqs",
            16,
            ("exec vllm serve m --seed 1 --max-num-seqs=16",),
            id="appended to a script that is one command",
        ),
        pytest.param(
            container(args=["--config", "c.yaml"]),
            "max-num-seqs",
            8,
            ("--config", "c.yaml", "--max-num-seqs=8"),
            id="a flag wins over the file",
        ),
    ],
)
def test_changes_one_flag(found: dict[str, Any], knob: str, value: int | str, words: tuple[str, ...]) -> None:
    after = changed(command_line(found), knob=knob, value=value)
    assert isinstance(after, CommandLine)
    assert after.words == words


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("/prepare && vllm serve m", id="another command"),
        pytest.param("vllm serve m # the small one", id="a comment at the end"),
        pytest.param("vllm serve m --max-num-seqs 2 --max-num-seqs 4", id="set twice"),
        pytest.param("vllm serve m --max-num-seqs '4'x", id="no plain value"),
        pytest.param("A=--max-num-seqs=4; vllm serve m --max-num-seqs=4", id="somebody else's flag too"),
    ],
)
def test_a_script_that_does_more_is_left_alone(script: str) -> None:
    assert isinstance(changed(command_line(container(command=["sh", "-c", script])), knob="max-num-seqs", value=8),
                      Unreadable)  # fmt: skip


@given(
    words=st.lists(
        st.one_of(
            st.sampled_from(
                ["--seed=1", "--enable-prefix-caching", "--max-num-seqs=4", "--max-num-seqs", "4", "-tp=2"]
            ),
            st.text(alphabet="ab \\'\"{}:,=-", min_size=1, max_size=6).map(lambda text: f"--chat-template={text}"),
        ),
        max_size=6,
    ),
    value=st.integers(min_value=1, max_value=4096),
)
def test_a_script_reads_and_changes_like_the_words_in_it(words: list[str], value: int) -> None:
    plain = command_line(container(command=["vllm", "serve", "m", *words]))
    script = command_line(container(command=["sh", "-c", "exec vllm serve m " + shlex.join(words)]))
    try:
        flags = plain.flags
    except FlagError:
        with pytest.raises(FlagError):
            _ = script.flags
        return
    assert script.flags == flags
    after = changed(script, knob="max-num-seqs", value=value)
    if isinstance(after, CommandLine):
        assert after.flags == replace(flags, max_num_seqs=value)
    else:
        assert words.count("--max-num-seqs=4") + words.count("--max-num-seqs") > 1 or "#" in str(words)


@given(
    words=st.lists(
        st.one_of(
            st.sampled_from(["m", "--seed=1", "--enable-prefix-caching", "--kv-cache-dtype=fp8", "--unknown", "-O3"]),
            st.sampled_from(["--max-num-seqs=4", "-tp=2", "--max_model_len=8k", "--api-key=a b"]),
        ),
        max_size=8,
    ),
    value=st.integers(min_value=1, max_value=4096),
)
def test_nothing_but_the_flag_changes(words: list[str], value: int) -> None:
    line = command_line(container(args=words))
    after = changed(line, knob="max-num-seqs", value=value)
    assert isinstance(after, CommandLine)
    assert after.flags.max_num_seqs == value
    kept = [word for word in words if not word.startswith("--max-num-seqs")]
    assert [word for word in after.words if not word.startswith("--max-num-seqs")] == kept


@pytest.mark.parametrize(
    ("containers", "names"),
    [
        pytest.param([container(), {"name": "proxy", "image": "envoy"}], ["vllm"], id="by its image"),
        pytest.param(
            [container(name="router", command=["vllm-router"]), container(name="a", command=["vllm", "serve", "m"])],
            ["a"],
            id="what starts vLLM before what is only named so",
        ),
        pytest.param(
            [container(command=["vllm"], args=["serve", "m"]), {"name": "x", "args": ["--backend", "vllm"]}],
            ["vllm"],
            id="a proxy that names its backend",
        ),
        pytest.param([{"name": "x", "image": "own:1", "args": ["--max-num-seqs=4"]}], ["x"], id="by a flag"),
        pytest.param([{"name": "x", "image": "nginx"}], [], id="none"),
        pytest.param([container(name="a"), container(name="b")], ["a", "b"], id="two"),
        pytest.param([{"name": "x", "image": "own", "command": ["sh", "-c", SCRIPT]}], ["x"], id="by a script"),
    ],
)
def test_tells_which_containers_serve(containers: list[dict[str, Any]], names: list[str]) -> None:
    assert [one["name"] for one in serving_containers(containers)] == names


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(container(args=["m", "--seed=1"]), id="arguments"),
        pytest.param(container(command=["sh", "-c", "exec vllm serve m --seed 1"]), id="a script"),
    ],
)
@pytest.mark.parametrize(("knob", "value"), [("max-num-seqs", 8), ("max-model-len", 4096), ("kv-cache-dtype", "fp8")])
def test_what_was_appended_can_be_removed_again(found: dict[str, Any], knob: str, value: int | str) -> None:
    line = command_line(found)
    with_it = changed(line, knob=knob, value=value)
    assert isinstance(with_it, CommandLine)
    assert removed(with_it, knob=knob, value=value) == line


def test_a_flag_that_its_owner_wrote_is_not_removed() -> None:
    line = command_line(container(args=["m", "--max-num-seqs", "8"]))
    assert isinstance(removed(line, knob="max-num-seqs", value=8), Unreadable)
