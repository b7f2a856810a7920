"""An existing Deployment: what is read of it, and the least that is written to it."""

from typing import Any

import pytest
from tests.control.adopting_bed import ARGS, theirs

from vllm_autotuner.api.knobs import EngineKnobs, Knob
from vllm_autotuner.engine.command_line import Field
from vllm_autotuner.workload.adoption import Target, Unadoptable, Unwritable, digest_of, marker_of, read_target
from vllm_autotuner.workload.labels import ADOPTION
from vllm_autotuner.workload.rollout import ready_floor, rollout_obstacle


def target(**container: Any) -> Target:
    body = theirs()
    body["metadata"] |= {"resourceVersion": "7"}
    body["spec"]["template"]["spec"]["containers"][0].update(container)
    found = read_target(body)
    assert isinstance(found, Target), found
    return found


@pytest.mark.parametrize(
    ("args", "knobs"),
    [
        pytest.param(ARGS, EngineKnobs(max_num_seqs=64), id="one knob"),
        pytest.param(
            ("m", "-tp=2", "--kv-cache-dtype", "fp8", "--max-model-len=8k"),
            EngineKnobs(max_model_len=8000, kv_cache_dtype="fp8", tensor_parallel_size=2),
            id="the other three",
        ),
        pytest.param(("m",), EngineKnobs(), id="none"),
        pytest.param(("m", "--max-model-len=auto"), EngineKnobs(), id="auto is no value"),
        pytest.param(
            ("m", "-tp=128", "--max-num-seqs=4"), EngineKnobs(max_num_seqs=4), id="a degree that the API cannot hold"
        ),
        pytest.param(("m", "--max-num-seqs=$(N)"), EngineKnobs(), id="unreadable"),
    ],
)
def test_reads_the_owners_values(args: tuple[str, ...], knobs: EngineKnobs) -> None:
    assert target(args=list(args)).knobs == knobs


def test_writes_one_list_of_one_container_and_what_stood_there() -> None:
    found = target()
    words = found.words(EngineKnobs(max_num_seqs=128))
    patch = found.patch(words, service_uid="u-1", ours=frozenset())
    assert patch["spec"] == {"template": {"spec": {"containers": [{"name": "server", "args": list(words)}]}}}
    assert (patch["metadata"]["uid"], patch["metadata"]["resourceVersion"]) == ("d-1", "7")
    assert set(patch["metadata"]) == {"name", "namespace", "uid", "resourceVersion", "annotations"}
    marker = marker_of({"metadata": {"annotations": patch["metadata"]["annotations"]}})
    assert marker is not None
    assert (marker.service_uid, marker.original, marker.field) == ("u-1", ARGS, Field.ARGS)
    assert marker.written == digest_of(words)


def test_a_list_that_is_ours_already_is_never_left_out_of_a_write() -> None:
    """It would be removed with the write: nobody else owns it."""
    found = target(command=["vllm", "serve"], args=["m", "--max-num-seqs=4"])
    patch = found.patch(("m", "--max-num-seqs=8"), service_uid="u", ours=frozenset({Field.COMMAND, Field.ARGS}))
    [container] = patch["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "server", "args": ["m", "--max-num-seqs=8"], "command": ["vllm", "serve"]}


def test_the_owners_values_give_the_owners_words() -> None:
    found = target(args=["m", "--max-num-seqs", "64", "--max-num-seqs=64"])
    assert found.words(found.knobs) == ("m", "--max-num-seqs", "64", "--max-num-seqs=64")
    tuned = found.from_line(ARGS).words(EngineKnobs(max_num_seqs=64, kv_cache_dtype="fp8"))
    assert tuned == (*ARGS, "--kv-cache-dtype=fp8")


def test_equal_pods_have_equal_hashes_and_others_do_not() -> None:
    found, again = target(), target()
    assert found.hash(ARGS) == again.hash(ARGS) == found.hash(found.words(found.knobs))
    assert found.hash(ARGS) != found.hash((*ARGS, "--seed=2"))
    assert found.hash(ARGS) != target(image="vllm/vllm-openai:v0.31.0").hash(ARGS)
    assert found.hash(ARGS) != target(env=[{"name": "A", "value": "b"}]).hash(ARGS)


def test_what_cannot_be_written_is_an_obstacle_and_never_written() -> None:
    hidden = target(command=["sh", "-c", "/prepare; vllm serve m"], args=[])
    assert "does more than start the engine" in hidden.obstacle(Knob.MAX_NUM_SEQS)
    with pytest.raises(Unwritable):
        hidden.words(EngineKnobs(max_num_seqs=8))
    assert hidden.words(EngineKnobs()) == ("sh", "-c", "/prepare; vllm serve m")
    assert "cannot be parsed" in target(args=["--max-num-seqs", "$(N)"]).obstacle(Knob.KV_CACHE_DTYPE)
    assert [target().obstacle(knob) for knob in Knob] == [""] * len(Knob)


def test_the_other_arguments_are_those_that_are_not_tuned() -> None:
    assert target(args=["m", "-tp", "2", "--quantization", "fp8", "--max_num_seqs=4"]).other_arguments == (
        "m", "--quantization", "fp8",
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"service": "u"}', '{"service": "u", "field": "image", "original": [], "written": ""}'],
)
def test_a_marker_that_somebody_edited_is_none(text: str) -> None:
    assert marker_of({"metadata": {"annotations": {ADOPTION: text}}}) is None


def test_an_engine_among_others_may_be_named() -> None:
    body = theirs()
    [first] = body["spec"]["template"]["spec"]["containers"]
    body["spec"]["template"]["spec"]["containers"].append({**first, "name": "vllm"})
    found = read_target(body)
    assert isinstance(found, Target)
    assert found.container_name == "vllm"
    first["name"], body["spec"]["template"]["spec"]["containers"][1]["name"] = "a", "b"
    refused = read_target(body)
    assert isinstance(refused, Unadoptable)
    assert "containers a and b" in refused.message


@pytest.mark.parametrize(
    ("replicas", "strategy", "floor", "obstacle"),
    [
        pytest.param(1, None, 1, "", id="the default keeps the only pod"),
        pytest.param(3, None, 3, "", id="a quarter of three is none"),
        pytest.param(8, None, 6, "", id="a quarter of eight"),
        pytest.param(2, {"rollingUpdate": {"maxUnavailable": 0}}, 2, "", id="none may miss"),
        pytest.param(2, {"rollingUpdate": {"maxUnavailable": 1}}, 1, "", id="one of two"),
        pytest.param(1, {"rollingUpdate": {"maxUnavailable": 1}}, 0, "all of its pods at once", id="the only one"),
        pytest.param(4, {"rollingUpdate": {"maxUnavailable": "100%"}}, 0, "all of its pods at once", id="all"),
        pytest.param(2, {"type": "Recreate"}, 0, "Recreate", id="stop first"),
        pytest.param(0, None, 0, "", id="scaled to nothing"),
    ],
)
def test_what_the_strategy_allows(replicas: int, strategy: Any, floor: int, obstacle: str) -> None:
    body = theirs(replicas=replicas, **({"spec__strategy": strategy} if strategy else {}))
    assert ready_floor(body) == floor
    found = rollout_obstacle(body)
    assert obstacle in found
    assert bool(found) is bool(obstacle)


def test_a_paused_deployment_rolls_nothing_out() -> None:
    assert "paused" in rollout_obstacle(theirs(spec__paused=True))
