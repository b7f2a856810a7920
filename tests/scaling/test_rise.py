"""A replica is asked for before it is needed where a load surely rises, and for nothing that chance does."""

import math
import random
from datetime import timedelta

import pytest
from tests.builders import NOW, WINDOW, observation, targets
from tests.scaling.loads import carrying, minutes, served

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.observation.observation import FirstTokens, Observation
from vllm_autotuner.scaling.rise import growth, too_much_soon

TEN_MINUTES = timedelta(minutes=10)


def grows(first_tokens: tuple[FirstTokens, ...], *, within: float = 240.0, since: float | None = None) -> float | None:
    return growth(observation(first_tokens=first_tokens), within=within, over=TEN_MINUTES, since=since)


def soon(seen: Observation, *, tpot: float = 0.0178, replicas: int = 2) -> str | None:
    case = Case(observation=seen, targets=targets(tpot=tpot), knobs=EngineKnobs())
    return too_much_soon(case, replicas=replicas, over=TEN_MINUTES, since=None, within=240.0)


def test_the_worked_example() -> None:
    assert grows(served(minutes(100, more=2))) == pytest.approx((138 + 2 * 255 / WINDOW) / 138)


def test_nothing_is_foreseen_beyond_now_for_the_asking() -> None:
    """The rate at the end of the window is asked for, and its counts are of its middle."""
    assert grows(served(minutes(100, more=2)), within=0.0) == pytest.approx(139 / 138)


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([], id="nothing was seen"),
        pytest.param(minutes(100, more=2, windows=5), id="too few windows for the later half to have an error"),
        pytest.param(minutes(100, more=0), id="a steady load"),
        pytest.param(minutes(138, more=-2), id="a load that falls"),
        pytest.param([50.0] * 8 + [138.0] * 12, id="one that came at once, and stays"),
        pytest.param(
            [*minutes(20, more=12, windows=10), *minutes(138, more=0, windows=10)], id="one that rose, before"
        ),
        pytest.param([100.0, 104.0] * 10, id="chance: 4 of 100"),
        pytest.param([10.0, 11.0] * 9 + [14.0, 12.0], id="chance: what few requests do"),
        pytest.param([0.0] * 20, id="nobody comes"),
    ],
)
def test_what_is_no_rise(requests: list[float]) -> None:
    assert grows(served(requests)) is None


@pytest.mark.parametrize("rate", [20.0, 100.0, 500.0])
def test_a_steady_load_hardly_ever_looks_as_if_it_rose(rate: float) -> None:
    """Independent arrivals, 400 times ten minutes: 3 standard deviations let one of 700 pass."""
    dice = random.Random(7)
    found = 0
    for _ in range(400):
        requests = [float(_poisson(rate, dice)) for _ in range(20)]
        found += grows(served(requests)) is not None
    assert found <= 4


def _poisson(mean: float, dice: random.Random) -> int:
    count, elapsed = 0, dice.expovariate(mean)
    while elapsed < 1.0:
        count, elapsed = count + 1, elapsed + dice.expovariate(mean)
    return count


@pytest.mark.parametrize("rise", [1.0, 2.0, 5.0])
def test_a_steady_rise_is_seen_in_spite_of_chance(rise: float) -> None:
    dice = random.Random(11)
    found = [grows(served([float(_poisson(each, dice)) for each in minutes(200, more=4 * rise)])) for _ in range(100)]
    seen = [each for each in found if each is not None]
    expected = (200 + 4 * rise * (19 + 255 / WINDOW)) / (200 + 4 * rise * 19)
    assert len(seen) >= 60
    assert math.fsum(seen) / len(seen) == pytest.approx(expected, rel=0.05)


def test_a_replica_that_comes_meanwhile_takes_from_the_others_and_hides_no_rise() -> None:
    """Two engines until five minutes ago, then three: each has fewer, and all together as many as would have come."""
    total = minutes(200, more=4)
    old = served([*(each / 2 for each in total[:10]), *(each / 3 for each in total[10:])])
    new = served([each / 3 for each in total[10:]])
    assert grows((*old, *old, *new)) == pytest.approx((276 + 4 * 255 / WINDOW) / 276, rel=0.03)


def test_a_replica_that_took_the_place_of_another_is_no_rise() -> None:
    """What the pod served that is gone is in no metrics of those that are there: half of it all was, until lately."""
    old, new = served([100.0] * 20), served([100.0] * 10)
    assert grows((*old, *new)) is None


def test_who_asks_whether_it_may_rise_hears_of_less() -> None:
    requests = [100.0, 120.0, 90.0, 115.0] * 4 + [125.0, 100.0, 120.0, 125.0]
    seen = observation(first_tokens=served(requests))
    assert growth(seen, within=0.0, over=TEN_MINUTES, since=None) is None
    assert growth(seen, within=0.0, over=TEN_MINUTES, since=None, deviations=1.0) is not None


def test_what_was_before_somebody_went_does_not_count() -> None:
    """One of two went eight minutes ago, and the other has had all since."""
    requests = [50.0, 50.0, 50.0, *minutes(100, more=2, windows=17)]
    assert grows(served(requests), since=NOW - 17 * WINDOW) == pytest.approx((132 + 2 * 255 / WINDOW) / 132)


def test_more_than_the_replicas_can_do_in_time_is_said() -> None:
    assert soon(carrying(minutes(100, more=2))) == (
        "the load rises by 12% in the 240 s that a replica takes to start: "
        "2 replica(s) would reach batch size 71 and a TPOT of 18 ms"
    )


@pytest.mark.parametrize(
    ("seen", "limits"),
    [
        pytest.param(carrying(minutes(100, more=2)), {"tpot": 0.0185}, id="tokens will be in time"),
        pytest.param(carrying(minutes(100, more=2)), {"replicas": 3}, id="as many as are starting already will do"),
        pytest.param(carrying([138.0] * 20), {"tpot": 0.001}, id="no rise at all"),
        pytest.param(observation(first_tokens=served(minutes(100, more=2))), {"tpot": 0.001}, id="steps are not known"),
    ],
)
def test_nothing_is_said_where_it_is_not_so_or_not_known(seen: Observation, limits: dict[str, float]) -> None:
    assert soon(seen, **limits) is None  # type: ignore[arg-type]
