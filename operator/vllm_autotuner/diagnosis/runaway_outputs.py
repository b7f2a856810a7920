"""RunawayOutputs: requests end only at their token limit, with far longer outputs than expected."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vllm_autotuner.api.status import Confidence
from vllm_autotuner.diagnosis.case import Case
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.diagnosis.evidence import Evidence, Threshold
from vllm_autotuner.diagnosis.finding import Fails, Finding, Holds
from vllm_autotuner.observation.engine_window import BY_LENGTH, Endings
from vllm_autotuner.observation.reading import number

__all__ = ["RunawayOutputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunawayOutputs:
    """Nearly all requests end by length, *and* outputs fill the rest of max-model-len or have become much longer.

    Ending by length alone is normal: load generators with fixed output lengths and clients with a small max_tokens do
    so for every request.
    """

    diagnosis: ClassVar = DiagnosisClass.RUNAWAY_OUTPUTS
    by_length: Threshold = Threshold(
        limit=0.9,
        unit="of finished requests",
        reason="with a missing stop token nearly all requests end by length",
        source="field report F5 (triage card)",
    )
    stay: Threshold = Threshold(
        limit=0.7,
        unit="of finished requests",
        reason="hysteresis: clears only when clearly fewer end by length",
        source="our choice",
    )
    fills: Threshold = Threshold(
        limit=0.8,
        unit="of max-model-len less the prompt",
        reason="an intended limit is well below this; the mean has a spread",
        source="our choice, unmeasured",
    )
    jumped: Threshold = Threshold(
        limit=2, unit="times the earlier mean", reason="more than the usual drift of traffic", source="our choice"
    )
    before: Threshold = Threshold(
        limit=0.5,
        unit="of finished requests",
        reason="only if most requests used to stop by themselves can a stop token be missing now",
        source="our choice",
    )
    fewest: Threshold = Threshold(
        limit=5, unit="requests", reason="fewer requests are single tests, not traffic", source="our choice"
    )

    def judge(self, case: Case) -> Finding:
        """Hold when nearly all requests end by length and outputs are far too long."""
        ended = self._in_window(case)
        if ended is None or ended.finished < self.fewest.limit:
            # Outputs of thousands of tokens take longer than one window, so few of them end within it.
            ended = _together([engine.lately for engine in case.engines])
        if ended is None or ended.output_mean is None or ended.finished < self.fewest.limit:
            return Fails()
        share, finished, output = ended.by_length / ended.finished, ended.finished, ended.output_mean
        limit = (self.stay if self.diagnosis in case.holding else self.by_length).limit
        if share < limit:
            return Fails()
        left, before = self._left(case), self._before(case)
        fills = left is not None and output >= self.fills.limit * left
        jumped = before is not None and output >= self.jumped.limit * before
        if not fills and not jumped:
            return Fails()
        how = f"max-model-len leaves {left:.0f}" if fills else f"earlier mean {before:.0f}"
        message = (
            f"{share:.0%} of requests end at their token limit with a mean of {output:.0f} output tokens ({how}). "
            "A stop token or a reasonable max_tokens is missing."
        )
        return Holds(
            message=message,
            evidence=(
                Evidence(
                    name="finished by length",
                    value=round(share, 3),
                    unit="share",
                    threshold=limit,
                    note=f"of {finished:.0f}",
                ),
                Evidence(name="output length, mean", value=round(output, 1), unit="tokens"),
                Evidence(
                    name="output tokens that max-model-len leaves",
                    value=left,
                    unit="tokens",
                    note="" if left is not None else "max-model-len is not known",
                ),
                Evidence(
                    name="earlier output length, mean",
                    value=before,
                    unit="tokens",
                    note="" if before is not None else "no earlier requests that stopped by themselves",
                ),
            ),
            confidence=Confidence.HIGH if fills else Confidence.MEDIUM,
        )

    def _in_window(self, case: Case) -> Endings | None:
        """Return the requests that ended in this window; None if finish reasons are not exported."""
        reasons = [engine.finished_by for engine in case.engines if engine.finished_by]
        if not reasons:
            return None
        finished = sum(sum(counts.values()) for counts in reasons)
        by_length = sum(counts.get(BY_LENGTH, 0.0) for counts in reasons)
        output = number(case.observation.recent_output_length.mean)
        return Endings(finished=finished, by_length=by_length, output_mean=output)

    def _left(self, case: Case) -> float | None:
        """Return the output tokens that max-model-len leaves after a prompt of the current mean length."""
        lengths = [engine.pool.max_model_len for engine in case.engines if engine.pool.max_model_len is not None]
        longest = case.knobs.max_model_len or min(lengths, default=None)
        prompt = number(case.observation.recent_prompt_length.mean)
        return None if longest is None or prompt is None else max(1.0, longest - prompt)

    def _before(self, case: Case) -> float | None:
        """Return the mean output tokens before this window, if most requests stopped by themselves then."""
        known = _together([engine.earlier for engine in case.engines])
        if known is None or known.finished < self.fewest.limit or known.by_length > self.before.limit * known.finished:
            return None
        return known.output_mean


def _together(parts: Sequence[Endings | None]) -> Endings | None:
    """Add up engines; None if none exports finish reasons."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    means = [(one.output_mean, one.finished) for one in known if one.output_mean is not None]
    weight = sum(finished for _, finished in means)
    return Endings(
        finished=sum(one.finished for one in known),
        by_length=sum(one.by_length for one in known),
        output_mean=sum(mean * finished for mean, finished in means) / weight if weight > 0 else None,
    )
