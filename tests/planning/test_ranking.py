"""Which of two outcomes is better: never the worse one, in any profile."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.builders import targets

from vllm_autotuner.api.spec import Profile
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.planning.ranking import Effect, rank

SECONDS = st.floats(0.0001, 1000)
EFFECTS = st.builds(Effect, ttft=SECONDS, tpot=SECONDS, tokens_per_second=st.floats(0, 1e7), gpus=st.integers(1, 1024))
TARGETS = st.builds(
    lambda profile, ttft, tpot: Targets(
        profile=profile, ttft=Target(quantile=0.95, seconds=ttft), tpot=Target(quantile=0.5, seconds=tpot)
    ),
    st.sampled_from(Profile),
    SECONDS | st.just(1e6),  # met by everything: then only the margin of the profile decides
    SECONDS | st.just(1e6),
)
SHARE = st.floats(0.01, 0.99)


def best(effects: Mapping[str, Effect], *, targets: Targets) -> str:
    return min(effects, key=lambda name: rank(effects[name], targets=targets))


@st.composite
def worsened(draw: st.DrawFn) -> tuple[Effect, Effect]:
    """Two effects: the second is worse in some respects, often in a single one, and equal in the others."""
    respects = st.sampled_from(["ttft", "tpot", "tokens", "gpus"])
    good, worse = draw(EFFECTS), draw(st.sets(respects, min_size=1, max_size=1) | st.sets(respects, min_size=1))
    share = draw(SHARE)
    return good, Effect(
        ttft=good.ttft * (1 + share) if "ttft" in worse else good.ttft,
        tpot=good.tpot * (1 + share) if "tpot" in worse else good.tpot,
        tokens_per_second=good.tokens_per_second * (1 - share) if "tokens" in worse else good.tokens_per_second,
        gpus=good.gpus + 1 if "gpus" in worse else good.gpus,
    )


@settings(max_examples=300)
@given(worsened(), TARGETS)
def test_for_two_candidate_results_the_strictly_better_one_always_wins_in_every_profile(
    pair: tuple[Effect, Effect], wanted: Targets
) -> None:
    """Regression: a ranking with an inverted sign applied the worst candidate of all."""
    good, bad = pair
    # No tokens at all cannot become fewer: then the two are equal.
    assume(good.tokens_per_second > 1e-6)
    for profile in Profile:
        against = replace(wanted, profile=profile)
        assert best({"bad": bad, "good": good}, targets=against) == "good"
        assert best({"good": good, "bad": bad}, targets=against) == "good"


@given(EFFECTS, EFFECTS, TARGETS)
def test_the_order_of_asking_does_not_matter(one: Effect, other: Effect, wanted: Targets) -> None:
    assume(rank(one, targets=wanted) != rank(other, targets=wanted))
    assert best({"a": one, "b": other}, targets=wanted) == best({"b": other, "a": one}, targets=wanted)


FAST = Effect(ttft=0.5, tpot=0.02, tokens_per_second=1000, gpus=1)


@pytest.mark.parametrize(
    ("profile", "one", "other"),
    [
        pytest.param(
            Profile.LATENCY,
            FAST,
            replace(FAST, tpot=0.04, tokens_per_second=3000),
            id="Latency keeps a reserve rather than more tokens",
        ),
        pytest.param(
            Profile.THROUGHPUT,
            replace(FAST, tpot=0.04, tokens_per_second=3000),
            FAST,
            id="Throughput takes the tokens while objectives are met",
        ),
        pytest.param(
            Profile.THROUGHPUT,
            FAST,
            replace(FAST, tpot=0.06, tokens_per_second=3000),
            id="no number of tokens buys a missed objective",
        ),
        pytest.param(
            Profile.BURSTY,
            FAST,
            replace(FAST, ttft=0.9, tpot=0.01),
            id="Bursty looks at the first token",
        ),
        pytest.param(
            Profile.LATENCY,
            replace(FAST, tpot=0.045),
            replace(FAST, tpot=0.001, gpus=2),
            id="inside the objectives fewer GPUs win",
        ),
        pytest.param(
            Profile.LATENCY,
            replace(FAST, gpus=8),
            replace(FAST, ttft=3.0),
            id="objectives come before GPUs",
        ),
    ],
)
def test_what_a_profile_prefers(profile: Profile, one: Effect, other: Effect) -> None:
    wanted = targets(ttft=2.0, tpot=0.05, profile=profile)
    assert best({"one": one, "other": other}, targets=wanted) == "one"
