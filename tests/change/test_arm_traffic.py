"""Arms with unequal traffic: less flatters, more burdens, chance is neither."""

from datetime import timedelta

import pytest
from tests.builders import targets
from tests.change.worlds import NOW

from vllm_autotuner.api.status import ChangeTarget, Measurement
from vllm_autotuner.change.arm_traffic import ArmTraffic, arm_traffic
from vllm_autotuner.change.comparison import Pair, compare
from vllm_autotuner.change.verdict import Judgement

LENGTH = timedelta(seconds=30)
TARGETS = targets(ttft=2.0, tpot=0.05)


def windows(
    requests: float | None,
    *,
    prompts: float | None = 1000.0,
    ttft: float = 0.5,
    held: tuple[float, float] = (10.0, 10.0),
) -> list[Measurement]:
    """Ten windows; what runs grows from the first to the second figure."""
    return [
        Measurement(
            at=NOW + index * LENGTH,
            ttft_seconds=ttft * (1.01 if index % 2 else 0.99),
            tpot_seconds=0.02,
            tokens_per_second=500.0,
            requests_per_second=requests,
            prompt_tokens_per_second=prompts,
            running=held[0] + (held[1] - held[0]) * index / 9,
            waiting=0.0,
        )
        for index in range(10)
    ]


def rejecting(found: list[Measurement], rate: float) -> list[Measurement]:
    return [window.updated(rejected_per_second=rate) for window in found]


def one_lost(found: list[Measurement], *, at: int = 3) -> list[Measurement]:
    lost = found[at].updated(requests_per_second=None, prompt_tokens_per_second=None)
    return [*found[:at], lost, *found[at + 1 :]]


def traffic(ours: list[Measurement], theirs: list[Measurement]) -> ArmTraffic:
    return arm_traffic(ours, theirs, length=LENGTH)


@pytest.mark.parametrize(
    ("ours", "theirs", "fewer", "more"),
    [
        pytest.param(windows(2.0), windows(2.0), False, False, id="as much"),
        pytest.param(windows(1.0), windows(2.0), True, False, id="half of the requests"),
        pytest.param(windows(2.0), windows(1.0), False, True, id="twice as many"),
        pytest.param(windows(1.7), windows(2.0), False, False, id="as routers share out"),
        pytest.param(windows(0.1), windows(0.15), False, False, id="few requests differ by chance"),
        pytest.param(windows(2.0, prompts=300.0), windows(2.0), True, False, id="short prompts only"),
        pytest.param(windows(2.0, prompts=2500.0), windows(2.0), False, True, id="the long prompts"),
        pytest.param(windows(1.0, held=(10.0, 300.0)), windows(2.0), False, False, id="as many came, and wait"),
        pytest.param(windows(0.0), windows(2.0), True, False, id="none at all"),
        pytest.param(windows(0.0, prompts=0.0), windows(0.01), False, False, id="none, and by chance none more"),
        pytest.param(windows(None), windows(2.0), False, False, id="not told"),
        pytest.param(windows(1.0), one_lost(windows(2.0)), True, False, id="not told in one window"),
        pytest.param(one_lost(windows(2.0)), one_lost(windows(2.0), at=7), False, False, id="in one of each"),
        pytest.param(rejecting(windows(1.0), 1.0), rejecting(windows(2.0), 0.0), False, False, id="half are rejected"),
        pytest.param(windows(2.0), rejecting(windows(2.0), 2.0), False, False, id="one does not tell rejections"),
        pytest.param(windows(2.0, prompts=None), windows(2.0), False, False, id="prompts are not told"),
    ],
)
def test_what_each_arm_got(ours: list[Measurement], theirs: list[Measurement], fewer: bool, more: bool) -> None:
    found = traffic(ours, theirs)
    assert (found.fewer, found.more) == (fewer, more)


def judged(ours: list[Measurement], theirs: list[Measurement], *, final: bool = True) -> tuple[Judgement | None, str]:
    pairs = [Pair(candidate=one, reference=other) for one, other in zip(ours, theirs, strict=True)]
    found = compare(pairs, targets=TARGETS, target=ChangeTarget.TTFT, final=final)
    return found.judgement, found.text


def test_a_canary_with_half_of_the_requests_is_not_better_for_it() -> None:
    judgement, text = judged(windows(1.0, ttft=0.3), windows(2.0))
    assert judgement is Judgement.INCONCLUSIVE
    assert "no comparison: the canary got 50% of the requests and 100% of the prompt tokens" in text
    assert judged(windows(2.0, ttft=0.3), windows(2.0))[0] is Judgement.KEEP


def test_a_canary_without_requests_is_not_compared_and_the_reason_says_why() -> None:
    idle = [window.updated(ttft_seconds=None, tpot_seconds=None) for window in windows(0.0, prompts=0.0)]
    judgement, text = judged(idle, windows(2.0))
    assert judgement is Judgement.INCONCLUSIVE
    assert "0 of 6 windows with data: the canary got 0% of the requests and 0% of the prompt tokens" in text


def test_a_canary_with_twice_the_requests_is_not_worse_for_it() -> None:
    assert judged(windows(4.0, ttft=3.0), windows(2.0, ttft=2.2))[0] is Judgement.INCONCLUSIVE
    assert judged(windows(2.0, ttft=3.0), windows(2.0, ttft=2.2))[0] is Judgement.REVERT


def test_nor_is_one_that_is_many_times_slower_for_it_but_that_ends_at_once() -> None:
    judgement, text = judged(windows(4.0, ttft=9.0)[:4], windows(2.0, ttft=2.2)[:4], final=False)
    assert judgement is Judgement.INCONCLUSIVE
    assert "no comparison: the canary got 200% of the requests" in text
    assert judged(windows(2.0, ttft=9.0)[:4], windows(2.0, ttft=2.2)[:4], final=False)[0] is Judgement.REVERT


def test_a_canary_that_is_slow_with_less_traffic_is_worse_all_the_same() -> None:
    assert judged(windows(1.0, ttft=3.0), windows(2.0, ttft=2.2))[0] is Judgement.REVERT
