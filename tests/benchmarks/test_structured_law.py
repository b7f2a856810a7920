"""One law for every length mix: planted laws come back, priors decide only what data cannot, outliers do not bend."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benchmarks.laws import Mix, Planted

from benchmarks.measured_curves.priors import LawPriors, Prior, fastest_prefill, physics_priors
from benchmarks.measured_curves.step_sample import StepSample, steady_sample
from benchmarks.measured_curves.structured_law import Range, StructuredLaw, fit_structured_law
from vllm_autotuner.engine.geometry import KNOWN, Geometry, UnknownGeometry
from vllm_autotuner.engine.hardware import gpu_named
from vllm_autotuner.performance.step_time import NoFit

MIXES: tuple[Mix, ...] = ((300, 700), (1500, 300), (1500, 1500), (6000, 400), (6000, 2500))
UNSEEN = steady_sample(batch=48, prompt_tokens=3500, output_tokens=600)


def fitted(samples: list[StepSample], priors: LawPriors | None = None) -> StructuredLaw:
    law = fit_structured_law(samples, priors=priors or LawPriors())
    assert isinstance(law, StructuredLaw), law
    return law


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(Planted(), id="a made-up engine"),
        pytest.param(Planted(base=0.004, per_sequence=4e-6, per_held_token=9e-9, per_prefill_token=8e-6), id="fast"),
        pytest.param(Planted(base=0.3, per_sequence=0.004, per_held_token=2e-6, per_prefill_token=0.002), id="slow"),
        pytest.param(Planted(per_sequence=0.0), id="sequences cost nothing"),
        pytest.param(Planted(per_sequence=0.0006), id="sequences cost ten times what is usual"),
        pytest.param(Planted(per_prefill_token=0.0), id="prompts cost nothing"),
    ],
)
def test_a_planted_law_foresees_a_mix_that_it_has_not_seen(planted: Planted) -> None:
    law = fitted(planted.samples(MIXES))
    assert law.error < 0.02
    assert law.predict(UNSEEN) == pytest.approx(planted.at(UNSEEN), rel=0.04)


def test_noise_of_3_percent_costs_no_more_than_that() -> None:
    planted = Planted()
    for seed in range(8):
        law = fitted(planted.samples(MIXES, noise=0.03, seed=seed))
        assert law.predict(UNSEEN) == pytest.approx(planted.at(UNSEEN), rel=0.04)


def test_two_broken_points_do_not_bend_it() -> None:
    planted, samples = Planted(), Planted().samples(MIXES, noise=0.01)
    samples[3] = replace(samples[3], itl=samples[3].itl * 3)
    samples[17] = replace(samples[17], itl=samples[17].itl / 2)
    assert fitted(samples).predict(UNSEEN) == pytest.approx(planted.at(UNSEEN), rel=0.04)


def test_one_mix_is_explained_and_the_priors_say_what_makes_it_up() -> None:
    # One mix is one line: a slope, and three parameters to share it. True ones near the priors are then found again.
    planted = Planted(per_sequence=45e-6, per_held_token=60e-9, per_prefill_token=50e-6)
    priors = LawPriors(per_held_token=Prior(62e-9, 6e-9), per_prefill_token=Prior(52e-6, 20e-6))
    law = fitted(planted.samples(MIXES[2:3]), priors)
    assert law.mixes == 1
    assert law.error < 0.005
    assert law.predict(UNSEEN) == pytest.approx(planted.at(UNSEEN), rel=0.10)


def test_priors_that_the_data_refute_let_go() -> None:
    planted = Planted()
    wrong = LawPriors(base=Prior(0.002, 0.0002), per_held_token=Prior(9e-9, 1e-9), per_prefill_token=Prior(4e-6, 1e-6))
    law = fitted(planted.samples(MIXES, noise=0.01), wrong)
    assert law.predict(UNSEEN) == pytest.approx(planted.at(UNSEEN), rel=0.05)
    assert law.base == pytest.approx(planted.base, rel=0.1)


def test_it_tells_where_it_was_fitted() -> None:
    law = fitted(Planted().samples(((1000, 500), (2000, 500))), LawPriors(source="these"))
    assert (law.samples, law.mixes, law.priors) == (10, 2, "these")
    assert law.batch == Range(4, 64)
    assert law.context == Range(1250, 2250)
    assert law.prefill == Range(1000 / 500 * 3 / 4, 2000 / 500 * 63 / 64)
    assert law.covers(steady_sample(batch=32, prompt_tokens=1500, output_tokens=500))
    assert not law.covers(steady_sample(batch=100, prompt_tokens=1500, output_tokens=500))
    assert not law.covers(steady_sample(batch=32, prompt_tokens=4000, output_tokens=500))
    assert not law.covers(steady_sample(batch=32, prompt_tokens=2000, output_tokens=100))


def test_the_interval_widens_away_from_the_data_and_narrows_with_more() -> None:
    few = fitted(Planted().samples(MIXES[:2], noise=0.02))
    many = fitted(Planted().samples(MIXES, noise=0.02, batches=range(4, 64, 2)))
    near = steady_sample(batch=32, prompt_tokens=1500, output_tokens=300)
    far = steady_sample(batch=256, prompt_tokens=9000, output_tokens=300)

    def width(law: StructuredLaw, at: StepSample) -> float:
        low, high = law.interval(at)
        assert low <= law.predict(at) <= high
        return (high - low) / law.predict(at)

    assert width(few, far) > width(few, near)
    assert width(many, far) < width(few, far)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        pytest.param([], "0 samples", id="none"),
        pytest.param(Planted().samples(MIXES[:1], batches=(4, 8)), "2 samples", id="two"),
        pytest.param(Planted().samples(MIXES, batches=(30, 31)), "insufficient spread", id="constant load"),
        pytest.param(
            [replace(each, itl=float("nan")) for each in Planted().samples(MIXES)], "0 samples", id="no numbers"
        ),
        pytest.param([replace(each, itl=0.0) for each in Planted().samples(MIXES)], "0 samples", id="no time"),
        pytest.param(
            [replace(each, itl=1 / each.batch) for each in Planted().samples(MIXES[:1])], "does not grow with",
            id="faster with more",
        ),
    ],
)  # fmt: skip
def test_what_carries_no_law_says_why(samples: list[StepSample], why: str) -> None:
    found = fit_structured_law(samples, priors=LawPriors())
    assert isinstance(found, NoFit)
    assert why in found.why


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.001, 0.1), st.floats(0, 0.001), st.floats(0, 5e-7), st.floats(1e-6, 5e-4), st.floats(0, 0.3),
    st.integers(0, 1000),
)  # fmt: skip
def test_whatever_is_measured_no_parameter_is_negative(
    base: float, sequence: float, held: float, prefill: float, noise: float, seed: int
) -> None:
    planted = Planted(base=base, per_sequence=sequence, per_held_token=held, per_prefill_token=prefill)
    law = fit_structured_law(planted.samples(MIXES[:3], noise=noise, seed=seed), priors=LawPriors())
    if isinstance(law, StructuredLaw):
        assert min(law.base, law.per_sequence, law.per_held_token, law.per_prefill_token) >= 0
        small, large = (steady_sample(batch=batch, prompt_tokens=900, output_tokens=300) for batch in (8, 80))
        assert law.predict(small) <= law.predict(large)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 10))
def test_the_unit_of_time_does_not_matter(factor: float) -> None:
    samples = Planted().samples(MIXES, noise=0.02)
    scaled = [replace(each, itl=each.itl * factor) for each in samples]
    assert fitted(scaled).predict(UNSEEN) == pytest.approx(factor * fitted(samples).predict(UNSEEN))


# --- physics ---------------------------------------------------------------------------------------------------------


def test_a_sample_in_steady_state() -> None:
    # 8 * (4096 + 64) held; the prompts of the 7 others, once in 128 steps.
    sample = steady_sample(batch=8, prompt_tokens=4096, output_tokens=128)
    assert (sample.held_tokens, sample.prefill_tokens) == (33_280, 224)
    assert steady_sample(batch=0.5, prompt_tokens=100, output_tokens=100).prefill_tokens == 0


def test_physics_of_a_known_model_on_a_known_gpu() -> None:
    gpu = gpu_named("H100")
    priors = physics_priors(KNOWN["qwen3-32b"], gpu, tensor_parallel_size=2)
    assert priors.per_held_token is not None
    assert priors.per_held_token.mean * 1e9 == pytest.approx(54.3, abs=0.1)
    assert priors.base is not None
    assert priors.base.mean * 1e3 == pytest.approx(14.0, abs=0.1)
    assert "131,072 bytes" in priors.source


def test_eight_bit_weights_are_read_and_computed_in_half_the_time() -> None:
    gpu = gpu_named("H200")
    shape = KNOWN["llama-3.1-70b"]
    assert fastest_prefill(shape, gpu, tensor_parallel_size=1, bytes_per_weight=1) == pytest.approx(
        70.55e9 / 989e12, 1e-3
    )
    full = physics_priors(shape, gpu, tensor_parallel_size=1)
    half = physics_priors(shape, gpu, tensor_parallel_size=1, bytes_per_weight=1)
    assert full.base is not None
    assert half.base is not None
    # 67.7 GiB at 4.8 TB/s and 80 layers.
    assert half.base.mean * 1e3 == pytest.approx(15.1 + 5.3, abs=0.1)
    assert half.per_held_token == full.per_held_token


@pytest.mark.parametrize(
    ("shape", "label"),
    [(UnknownGeometry("MLA"), "H100"), (KNOWN["qwen3-8b"], "none such")],
    ids=["another cache", "another GPU"],
)
def test_without_geometry_or_gpu_the_priors_are_weak(shape: Geometry | UnknownGeometry, label: str) -> None:
    assert physics_priors(shape, gpu_named(label), tensor_parallel_size=1) == LawPriors()
    assert fastest_prefill(shape, gpu_named(label), tensor_parallel_size=1) is None


def test_without_a_count_of_weights_only_the_cache_is_known() -> None:
    shape = replace(KNOWN["qwen3-8b"], parameters=None)
    priors = physics_priors(shape, gpu_named("H100"), tensor_parallel_size=1)
    assert priors.per_held_token is not None
    assert (priors.base, priors.per_prefill_token) == (None, None)
