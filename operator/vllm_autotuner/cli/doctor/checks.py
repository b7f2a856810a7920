"""The checks of the doctor: facts in, one finding per check out, each with a remedy.

Ordered for repair: what makes other checks meaningless comes first. A check that does not apply
to a source gives no finding. Must not: query anything.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from vllm_autotuner.cli.diagnosis.text import seconds
from vllm_autotuner.cli.doctor.facts import Facts
from vllm_autotuner.diagnosis.objectives import Target, Targets
from vllm_autotuner.engine.metric_names import NAMES, Meaning
from vllm_autotuner.observation.series import STALE_AFTER_INTERVALS
from vllm_autotuner.observation.snapshot import EngineKey, WindowSettings

__all__ = ["CHECKS", "Finding", "Status", "examined"]

SKEW_SUSPECT: Final = 5.0
"""Seconds between the clocks from which times in answers mislead. NTP keeps machines within 0.1 s. Our choice."""
SKEW_FATAL: Final = 60.0
"""Seconds from which fresh samples look stale, or lie in the future. Our choice: three usual scrape intervals."""
COMFORTABLE_INTERVAL: Final = 15.0
"""Scrape interval (s) up to which a state is judged within a minute. Our choice: twice Prometheus Operator's pace."""
RESTLESS: Final = 3
"""Falls of a counter in half an hour that are no longer one rollout. Our choice."""
NEAR_EDGE: Final = 0.1
"""Distance of an objective to a bucket's edge, as a share of the objective, that does no harm. Our choice."""
WIDE_BUCKET: Final = 0.5
"""Width of the bucket around an objective, as a share of the objective, from which quantiles there are guesses: half
the objective is the error that interpolation may make. Our choice."""

CONSEQUENCES: Final[Mapping[Meaning, tuple[bool, str]]] = {
    Meaning.RUNNING: (True, "this engine cannot be diagnosed"),
    Meaning.WAITING: (True, "this engine cannot be diagnosed"),
    Meaning.KV_USAGE: (True, "a full KV cache cannot be told apart from a low max-num-seqs"),
    Meaning.PROMPT_TOKENS: (True, "a stuck engine is not detected"),
    Meaning.GENERATION_TOKENS: (True, "a stuck engine is not detected"),
    Meaning.TTFT: (True, "the TTFT objective is not checked"),
    Meaning.ITL: (True, "the TPOT objective is not checked"),
    Meaning.PREEMPTIONS: (True, "preemptions are not detected"),
    Meaning.FINISHED: (True, "arrivals and preemptions per request are unknown"),
}
"""What is lost without a family. True: every supported engine version exports it, so its absence is a mistake; families
that are not listed came with some version or left with another, and their absence is only told."""


class Status(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line. `check` is API: programs match it."""

    check: str
    status: Status
    what: str
    remedy: str = ""


Check: TypeAlias = Callable[[Facts, Targets], Iterable[Finding]]


def examined(facts: Facts, targets: Targets) -> Sequence[Finding]:
    """Run every check."""
    return [finding for check in CHECKS for finding in check(facts, targets)]


def _engines(facts: Facts, targets: Targets) -> Iterable[Finding]:
    if facts.engines:
        count = len(facts.engines)
        yield Finding(check="engines", status=Status.OK, what=f"{count} vLLM engine{'s' * (count > 1)} found")
        return
    if not facts.scraped:
        yield Finding(
            check="engines",
            status=Status.FAILED,
            what=f"no metrics of vLLM at {facts.place}",
            remedy="Name a vLLM engine itself, which serves /metrics on its API port (8000 by default), and not a "
            "proxy, an exporter or another engine.",
        )
        return
    yield Finding(
        check="engines",
        status=Status.FAILED,
        what=f"no vLLM engine reports to {facts.place}",
        remedy="Let Prometheus scrape port 8000, path /metrics of the vLLM pods (PodMonitor, or the annotations "
        "prometheus.io/scrape and prometheus.io/port). A tenant header may be missing as well: --org-id.",
    )


def _warnings(facts: Facts, targets: Targets) -> Iterable[Finding]:
    if facts.warnings:
        yield Finding(
            check="answers",
            status=Status.FAILED,
            what=f"the server returned a partial answer: {facts.warnings[0]}",
            remedy="Partial answers are refused: missing engines would look idle. Repair the store or sidecar that the "
            "warning names.",
        )
    elif facts.scraped:
        yield Finding(check="answers", status=Status.OK, what="answers are complete, without warnings")


def _clocks(facts: Facts, targets: Targets) -> Iterable[Finding]:
    if facts.skew is None:
        return
    ahead = (
        f"this machine's clock is {seconds(abs(facts.skew))} {'ahead of' if facts.skew > 0 else 'behind'} the server's"
    )
    if abs(facts.skew) < SKEW_SUSPECT:
        yield Finding(check="clocks", status=Status.OK, what="the clocks of this machine and the server agree")
        return
    status = Status.FAILED if abs(facts.skew) >= SKEW_FATAL else Status.WARNING
    remedy = "Synchronize both with NTP: otherwise fresh samples look stale, and every service becomes MetricsBlind."
    yield Finding(check="clocks", status=status, what=ahead, remedy=remedy)


def _labels(facts: Facts, targets: Targets) -> Iterable[Finding]:
    if not facts.scraped or not facts.engines:
        return
    missing = [
        f"{_named(key)} lacks {' and '.join(absent)}"
        for key, engine in facts.engines.items()
        if (absent := [label for label in ("namespace", "pod") if not engine.labels.get(label)])
    ]
    yield _finding(
        "labels",
        missing,
        good="namespace and pod are on every series",
        status=Status.WARNING,
        remedy="The operator needs both; `diagnose` works without. Relabel __meta_kubernetes_namespace to namespace, "
        "__meta_kubernetes_pod_name to pod, and look for labeldrop rules.",
    )


def _freshness(facts: Facts, targets: Targets) -> Iterable[Finding]:
    if not facts.scraped or not facts.engines:
        return
    silent = [
        f"{_named(key)} was last scraped {seconds(engine.age)} ago"
        for key, engine in facts.engines.items()
        if engine.age is not None and engine.age > STALE_AFTER_INTERVALS * (engine.interval or COMFORTABLE_INTERVAL)
    ]
    yield _finding(
        "freshness",
        silent,
        good="every engine was scraped recently",
        status=Status.WARNING,
        remedy="Ignore this for a deleted pod. Otherwise see the target's error in Prometheus under Status, Targets.",
    )


def _interval(facts: Facts, targets: Targets) -> Iterable[Finding]:
    known = {key: engine.interval for key, engine in facts.engines.items() if engine.interval is not None}
    if not facts.scraped or not known:
        return
    windows = WindowSettings()
    slowest, interval = max(known.items(), key=lambda item: item[1])
    longest = windows.gauges / windows.fewest_scrapes
    window = max(windows.state, windows.fewest_scrapes * interval)
    if interval <= COMFORTABLE_INTERVAL * 1.05:
        yield Finding(
            check="interval", status=Status.OK, what=f"engines are scraped every {seconds(interval)} or faster"
        )
        return
    yield Finding(
        check="interval",
        status=Status.FAILED if interval > longest else Status.WARNING,
        what=f"{_named(slowest)} is scraped every {seconds(interval)}: "
        + (
            f"a window of {windows.gauges} s has too few samples"
            if interval > longest
            else f"a diagnosis needs {window:.0f} s"
        ),
        remedy=f"Set the scrape interval of vLLM pods to {COMFORTABLE_INTERVAL:.0f} s or less; a scrape costs "
        "an engine a few milliseconds.",
    )


def _twice(facts: Facts, targets: Targets) -> Iterable[Finding]:
    if not facts.engines:
        return
    found = [
        f"{_named(key)} has {len(engine.scrapers)} live series that differ in {', '.join(_differing(engine.scrapers))}"
        for key, engine in facts.engines.items()
        if len(engine.scrapers) > 1
    ]
    yield _finding(
        "duplicates",
        found,
        good="no engine is scraped twice",
        status=Status.FAILED,
        remedy="Two jobs scrape the same pod (often a PodMonitor beside annotations): remove one. An engine that "
        "two series report as is not diagnosed. Behind Thanos or Mimir: deduplicate the replica label.",
    )


def _routers(facts: Facts, targets: Targets) -> Iterable[Finding]:
    for key, engines in facts.routers.items():
        yield Finding(
            check="routers",
            status=Status.WARNING,
            what=f"{_named(key)} is a router that repeats the gauges of {engines} engine(s), without histograms",
            remedy="Scrape the engines themselves, and drop the router's vllm:num_requests_* series.",
        )


def _restarts(facts: Facts, targets: Targets) -> Iterable[Finding]:
    if not facts.scraped or not facts.engines:
        return
    found = [
        f"{_named(key)}: its token counter was reset {engine.resets:.0f} times in 30 minutes"
        for key, engine in facts.engines.items()
        if engine.resets is not None and engine.resets > RESTLESS
    ]
    yield _finding(
        "counters",
        found,
        good="no counter was reset often",
        status=Status.FAILED,
        remedy="Either the engine keeps restarting (kubectl describe pod), or several engines share one address: "
        "scrape pods, not a Service, and give each API server process its own port or metrics directory.",
    )


def _families(facts: Facts, targets: Targets) -> Iterable[Finding]:
    for key, engine in facts.engines.items():
        # An engine that drafts nothing has no drafts to count, whatever its version.
        missing = [
            meaning
            for meaning, entry in NAMES.items()
            if not engine.names.intersection(entry.names) and meaning is not Meaning.ACCEPTED_TOKENS
        ]
        wrong = [meaning for meaning in missing if CONSEQUENCES.get(meaning, (False, ""))[0]]
        old = [entry.names[0] for entry in NAMES.values() if _only_old(entry.names, engine.names)]
        about = f"{_named(key)} ({_generation(old, missing)})"
        if wrong:
            lost = "; ".join(f"{NAMES[meaning].names[0]} ({CONSEQUENCES[meaning][1]})" for meaning in wrong)
            yield Finding(
                check="families",
                status=Status.FAILED if {Meaning.RUNNING, Meaning.WAITING} & set(wrong) else Status.WARNING,
                what=f"{about} lacks {lost}",
                remedy="Every vLLM from 0.6 on exports these: check for a metric_relabel_configs rule that drops them, "
                "native histograms without classic buckets, or --disable-log-stats.",
            )
        else:
            told = ", ".join(str(meaning) for meaning in missing)
            what = f"{about} has all required metrics" + (f"; not in this version: {told}" if told else "")
            yield Finding(check="families", status=Status.OK, what=what)


def _pool(facts: Facts, targets: Targets) -> Iterable[Finding]:
    if not facts.engines:
        return
    missing = [_named(key) for key, engine in facts.engines.items() if engine.info is None]
    yield _finding(
        "pool",
        [f"{', '.join(missing)}: no vllm:cache_config_info"] if missing else [],
        good="every engine reports the size of its KV cache",
        status=Status.WARNING,
        remedy="Without it the capacity of the KV cache is unknown, and max-num-seqs is never raised. Upgrade vLLM, or "
        "stop dropping the series.",
    )


def _buckets(facts: Facts, targets: Targets) -> Iterable[Finding]:
    for name, target, meanings in (
        ("TTFT", targets.ttft, (Meaning.TTFT,)),
        ("TPOT", targets.tpot, (Meaning.TPOT, Meaning.ITL)),
    ):
        edges = {edge for one in facts.engines.values() for meaning in meanings for edge in one.edges.get(meaning, ())}
        finite = sorted(edge for edge in edges if edge != float("inf"))
        if finite:
            yield _resolution(name, target, finite)


def _resolution(name: str, target: Target, edges: Sequence[float]) -> Finding:
    check, wanted = f"buckets-{name.lower()}", target.seconds
    about = f"{name} {target.label} at most {seconds(wanted)}{' (default)' if target.defaulted else ''}"
    below = max((edge for edge in edges if edge <= wanted), default=0.0)
    above = min((edge for edge in edges if edge >= wanted), default=None)
    if above is None:
        return Finding(
            check=check,
            status=Status.FAILED,
            what=f"{about}: the highest bucket ends at {seconds(edges[-1])}, so a miss cannot be measured",
            remedy=f"Choose an objective of at most {seconds(edges[-1])}: vLLM's buckets cannot be changed.",
        )
    near = min(wanted - below, above - wanted) <= NEAR_EDGE * wanted
    if near or above - below <= WIDE_BUCKET * wanted:
        return Finding(check=check, status=Status.OK, what=f"{about}: the buckets resolve it")
    if target.defaulted:
        # A default, not the user's choice: that it falls into a wide bucket is not a warning.
        what = f"{about} is inside one bucket, {seconds(below)} to {seconds(above)}; set your own with --{name.lower()}"
        return Finding(check=check, status=Status.OK, what=what)
    nearest = " or ".join(seconds(edge) for edge in (below, above) if edge > 0)
    return Finding(
        check=check,
        status=Status.WARNING,
        what=f"{about} is inside one bucket, {seconds(below)} to {seconds(above)}: a quantile there is inaccurate",
        remedy=f"Choose {nearest} if users accept it; vLLM's buckets cannot be changed.",
    )


CHECKS: Final[tuple[Check, ...]] = (
    _engines,  # without one, nothing else says anything
    _warnings,  # half an answer explains every absence
    _clocks,
    _labels,
    _freshness,
    _interval,
    _twice,
    _routers,
    _restarts,
    _families,
    _pool,
    _buckets,
)


def _finding(check: str, problems: Sequence[str], *, good: str, status: Status, remedy: str) -> Finding:
    if not problems:
        return Finding(check=check, status=Status.OK, what=good)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return Finding(check=check, status=status, what=f"{problems[0]}{more}", remedy=remedy)


def _named(key: EngineKey) -> str:
    place = "/".join(filter(None, (key.namespace, key.pod))) or "an engine without labels"
    return f"{place} engine {key.engine}" if key.engine not in ("", "0") else place


def _differing(scrapers: Sequence[Mapping[str, str]]) -> Sequence[str]:
    labels = sorted({label for one in scrapers for label in one})
    return [label for label in labels if len({one.get(label) for one in scrapers}) > 1]


def _only_old(names: Sequence[str], exported: set[str]) -> bool:
    return names[0] not in exported and not exported.isdisjoint(names[1:])


def _generation(old: Sequence[str], missing: Sequence[Meaning]) -> str:
    if old:
        return f"an older vLLM: {len(old)} of its metrics have former names, which are supported"
    if Meaning.WAITING_BY_REASON in missing:
        return "a vLLM that does not report why requests wait"
    return "a current vLLM"
