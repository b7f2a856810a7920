"""More of the same evidence never makes an interval wider."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.measured_curves.priors import LawPriors
from benchmarks.measured_curves.step_sample import StepSample, steady_sample
from benchmarks.measured_curves.structured_law import StructuredLaw, fit_structured_law

BATCHES = st.lists(st.integers(1, 256), min_size=3, max_size=8, unique=True).filter(
    lambda all_: max(all_) > 2 * min(all_)
)


@settings(max_examples=100, deadline=None)
@given(
    BATCHES,
    st.floats(0.005, 0.05),
    st.floats(1e-5, 2e-3),
    st.integers(2, 4),
    st.lists(st.floats(-0.02, 0.02), min_size=8, max_size=8),
)
def test_repeated_samples_never_widen_the_interval(
    batches: list[int], base: float, slope: float, times: int, noise: list[float]
) -> None:
    samples = [
        steady_sample(
            batch=batch, prompt_tokens=1000, output_tokens=200, itl=(base + slope * batch) * (1 + error), mix="chat"
        )
        for batch, error in zip(batches, noise, strict=False)
    ]
    once, again = (fit_structured_law(samples * count, priors=LawPriors()) for count in (1, times))
    assume(isinstance(once, StructuredLaw) and isinstance(again, StructuredLaw))
    assert isinstance(once, StructuredLaw)
    assert isinstance(again, StructuredLaw)
    asked: StepSample = samples[0]
    widths = [(high - low) / law.predict(asked) for law in (once, again) for low, high in [law.interval(asked)]]
    # Priors pull less beside more data, so the law itself moves a little.
    assert widths[1] <= widths[0] * 1.02
