"""Objectives that a spec leaves out, and what its users read about them."""

from datetime import timedelta
from pathlib import Path

import yaml

from vllm_autotuner.api.spec import Objective, Objectives, Profile
from vllm_autotuner.diagnosis.objectives import DEFAULTS, targets_of

CRD = Path(__file__).resolve().parents[2] / "crds" / "vllmservices.yaml"


def test_the_api_says_what_is_assumed_where_nothing_is_set() -> None:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    told = spec["objectives"]["properties"]["profile"]["description"]
    assert set(DEFAULTS) == set(Profile)
    for profile in Profile:
        targets = targets_of(Objectives(profile=profile))
        assert (targets.ttft.quantile, targets.tpot.quantile) == (0.95, 0.95)
        assert profile.value in told
        for seconds in DEFAULTS[profile]:
            assert f"{seconds * 1000:g}ms" in told or f"{seconds:g}s" in told


def test_one_objective_leaves_the_other_to_the_profile() -> None:
    only_first = targets_of(Objectives(profile=Profile.BURSTY, ttft=Objective(target=timedelta(seconds=1))))
    assert (only_first.ttft.seconds, only_first.ttft.defaulted) == (1.0, False)
    assert (only_first.tpot.seconds, only_first.tpot.defaulted) == (0.05, True)
