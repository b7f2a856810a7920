"""`explain`: the decision made again on a recording, and every wrong question in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllm_autotuner.api.knobs import Knob
from vllm_autotuner.api.status import ChangeTarget, Confidence
from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.diagnosis.as_json import flag_of
from vllm_autotuner.cli.service.plan_text import plan_json
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.planning.plan import Considered, Plan
from vllm_autotuner.planning.proposal import Proposal

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "vllm-0.32" / "recordings"
SEATS, FULL = RECORDINGS / "seats-saturation.om.gz", RECORDINGS / "kv-saturation.om.gz"


def explained(*args: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["explain", *args])
    return found.exit_code, found.stdout, found.stderr


def test_every_candidate_with_its_effects_the_choice_and_the_rest() -> None:
    code, text, _ = explained("--recording", str(SEATS), "--at", "+140s", "--engine-args", "--max-num-seqs 4")
    assert code == 0
    for part in (
        "ConcurrencyCapped",
        "One step away, by the model, best first",
        "current",
        "maxNumSeqs 4 -> 16",
        "Chosen: maxNumSeqs",
    ):
        assert part in text
    assert "Second: replicas 1 -> 2; rejected: it adds GPUs; maxNumSeqs 16 adds none" in text
    assert "max-num-seqs" in text


def test_the_same_for_programs() -> None:
    code, text, _ = explained(
        "--recording", str(SEATS), "--at", "+140s", "--engine-args", "--max-num-seqs 4", "-o", "json"
    )
    plan = json.loads(text)["services"][0]["plan"]
    assert code == 0
    assert [(each["knob"], each["chosen"]) for each in plan["candidates"]] == [
        ("maxNumSeqs", True),
        ("replicas", False),
    ]
    assert plan["candidates"][0]["recommendOnly"] == "spec.tuning.maxNumSeqs sets no bounds"
    assert plan["current"]["gpus"] == 1


def test_what_goes_with_a_smaller_tp_size_has_fields_of_its_own() -> None:
    proposal = Proposal(
        knob=Knob.TENSOR_PARALLEL_SIZE, current=2, value=1, max_model_len=8192, max_num_seqs=174,
        target=ChangeTarget.GPUS, reason="", confidence=Confidence.MEDIUM,
    )  # fmt: skip
    plan = Plan(proposal=proposal, considered=(Considered(proposal=proposal),))
    (candidate,) = plan_json(plan, named=DiagnosisClass.HEALTHY)["candidates"]
    assert (candidate["value"], candidate["maxModelLen"], candidate["maxNumSeqs"]) == (1, 8192, 174)
    assert flag_of(proposal) == "--max-num-seqs=174 --max-model-len=8192 --tensor-parallel-size=1"


def test_a_gpu_makes_fp8_a_candidate(tmp_path: Path, full_by_memory: Path) -> None:
    """The tiny model of the recording is in no table: its config.json comes from a catalogue.

    It was recorded with a number of blocks by flag, of which no smaller value makes more.
    """
    catalogue = tmp_path / "catalogue.yaml"
    catalogue.write_text(
        "models:\n  tiny: {num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2,"
        " vocab_size: 1000, intermediate_size: 128}\n"
    )
    args = ("--engine-args", "--max-num-seqs 64", "--gpu", "H100", "--at", "+140s", "-o", "json")
    code, text, _ = explained("--recording", str(full_by_memory), *args, "--catalogue", str(catalogue))
    assert code == 0
    plan = json.loads(text)["services"][0]["plan"]
    assert "kvCacheDtype" in [each["knob"] for each in plan["candidates"]]
    _, by_flag, _ = explained("--recording", str(FULL), *args, "--catalogue", str(catalogue))
    passed_over = json.loads(by_flag)["services"][0]["plan"]["passedOver"]
    assert any("flags set the number of blocks" in why for why in passed_over)
    _, unknown, _ = explained("--recording", str(full_by_memory), *args)
    assert any(
        "the geometry of tiny is not known" in why for why in json.loads(unknown)["services"][0]["plan"]["passedOver"]
    )


def test_what_only_a_person_can_change_is_said_with_its_price() -> None:
    args = ("--recording", str(FULL), "--engine-args", "--max-num-seqs 64", "--at", "+140s")
    _, text, _ = explained(*args)
    assert "Not tuned by the operator: --gpu-memory-utilization" in text
    assert "max_tokens of requests" in text


@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param(
            (),
            "no source was named: give NAME, or exactly one of --prometheus URL and --recording FILE\n",
            id="neither a name nor a source",
        ),
        pytest.param(("--recording", "no.om"), "no.om", id="no such recording"),
        pytest.param(("--recording", str(SEATS), "-n", "prod"), "not for --recording FILE", id="a namespace of none"),
        pytest.param(("--recording", str(SEATS), "--context", "x"), "not for --recording FILE", id="a cluster of none"),
        pytest.param(("chat", "--recording", str(SEATS)), "not both", id="a name and a recording"),
        pytest.param(("chat", "--plot", "x.png"), "--plot needs metrics", id="a plot without metrics"),
        pytest.param(("--recording", str(SEATS), "--plot", "x.txt"), ".png, .svg, .pdf", id="an unknown picture"),
        pytest.param(
            ("--recording", str(SEATS), "--plot", "/no/such/x.png"),
            "folder /no/such does not exist",
            id="no such folder",
        ),
        pytest.param(("--recording", str(SEATS), "--gpu", "toaster"), "'toaster' is unknown", id="an unknown GPU"),
        pytest.param(("--recording", str(SEATS), "--tpot", "fast"), "--tpot 'fast'", id="a bad objective"),
        pytest.param(("--recording", str(SEATS), "--quantile", "2"), "--quantile '2'", id="a bad quantile"),
        pytest.param(
            ("--recording", str(SEATS), "--engine-args", "--max-num-seqs none"), "--max-num-seqs", id="a bad flag"
        ),
        pytest.param(("--recording", str(SEATS), "--catalogue", "no.yaml"), "cannot read no.yaml", id="no catalogue"),
        pytest.param(("--recording", str(SEATS), "--at", "+9h"), "outside of the recording", id="a moment outside"),
        pytest.param(("--recording", str(SEATS), "--plot", "curve.png"), "no step-time model", id="nothing to draw"),
        pytest.param(("--nonsense",), "No such option", id="an unknown option"),
    ],
)
def test_wrong_questions(args: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = explained(*args)
    assert (code, says in error) == (1, True), error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus: [", "is not YAML"),
        ("gpus: 3", "gpus: expected a list"),
        ("gpus: [{label: X}]", "gpus[0].memoryGiB"),
        ("gpus: 2001-99-99", "is not of its YAML type"),
        ('gpus: !!int "x"', "is not of its YAML type"),
        ('gpus: !!bool "x"', "is not of its YAML type"),
        ('gpus: !!timestamp "x"', "is not of its YAML type"),
    ],
)
def test_a_catalogue_that_cannot_be_used(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "catalogue.yaml"
    path.write_text(text)
    code, _, error = explained("--recording", str(SEATS), "--catalogue", str(path))
    assert (code, says in error) == (1, True), error
