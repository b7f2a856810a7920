"""The section of the H200 sweeps in docs/benchmarks.md. Must not: measure, or judge."""

from typing import Final

from benchmarks.markdown import Result, table, told

__all__ = ["h200_sweeps"]

LAWS: Final = {"line": "the product's law", "structured": "structured law", "points": "points joined"}

KNEES: Final = (
    "The batch chosen for a TPOT objective; `sweep` is interpolated between the points; `lost` is a share of goodput, "
    "all of it where TPOT there is above the objective by more than 1 %."
)

TYPES: Final = (
    "Two engines of the 8B on one GPU, one after the other; the product foretells that the type of the KV cache leaves "
    "the step as it is:"
)


def h200_sweeps(result: Result) -> list[str]:
    """Render raw points with what was foretold of them, the knees, the priors and what they are made of."""
    about = (
        "Recordings: `tests/data/vllm-0.26-h200`. TPOT is the engine's mean inter-token latency. `odd` and `even` are "
        "every other number of clients: a law fitted on one half foretells the other; (b) lies beyond what it was "
        "fitted on. Weights are random, so experts are hit evenly."
    )
    lines = [about, ""]
    for sweep in result["sweeps"]:
        lines += [f"**{sweep['name']}** ({sweep['model']}), milliseconds and % error of what was foretold:", ""]
        lines += [*_points(sweep), ""]
        lines += [_why(sweep), ""] if sweep["before_why"] else []
        if sweep["fits"]:
            lines += ["Errors on the points left out, absolute % (of `all`: on its own):", "", *_halves(sweep), ""]
            lines += [KNEES, "", *_knees(sweep), ""]
    return [*lines, *_engine(result)]


def _points(sweep: Result) -> list[str]:
    one = {each["clients"]: each["error_pct"] for each in sweep["from_one"]}
    found = {
        (fit["law"], point["clients"]): f"{point['error_pct']:+.1f}{' (b)' if point['beyond'] else ''}"
        for fit in sweep["fits"]
        if fit["fitted_on"] != "all"
        for point in fit["points"]
    }
    laws = [name for name in LAWS if any(law == name for law, _ in found)]
    rows = [
        (
            str(point["clients"]),
            f"{point['prompt_tokens']:.0f} + {point['output_tokens']:.0f}",
            told(point["tpot_ms"]),
            told(point["ttft_ms"]),
            told(point["throughput_tok_s"]),
            *(found.get((name, point["clients"]), "-") for name in laws),
            _signed(before["error_pct"]),
            _signed(one.get(point["clients"])),
        )
        for point, before in zip(sweep["points"], sweep["before"], strict=True)
    ]
    names = [LAWS[name] for name in laws]
    header = ("clients", "tokens", "TPOT", "TTFT", "tokens/s", *names, "priors alone", "lone TPOT from this load alone")
    return table(header, rows)


def _halves(sweep: Result) -> list[str]:
    rows = [
        (LAWS[fit["law"]], fit["fitted_on"], told(fit["median_abs_pct_error"]), told(fit["worst_abs_pct_error"]))
        for fit in _telling(sweep)
    ]
    return table(("law", "fitted on", "median", "worst"), rows)


def _knees(sweep: Result) -> list[str]:
    rows = [
        (
            LAWS[fit["law"]],
            fit["fitted_on"],
            f"{knee['objective_ms']:g} ms",
            f"above {sweep['points'][-1]['clients']}" if knee["measured"] is None else f"{knee['measured']:.0f}",
            told(knee["chosen"]),
            told(knee["tpot_there_ms"]),
            told(knee["lost"]),
        )
        for fit in _telling(sweep)
        for knee in fit["knees"]
    ]
    return table(("law", "fitted on", "objective", "sweep", "chosen", "TPOT there", "lost"), rows)


def _telling(sweep: Result) -> list[Result]:
    """Leave out points that foretell themselves."""
    return [fit for fit in sweep["fits"] if (fit["law"], fit["fitted_on"]) != ("points", "all")]


def _why(sweep: Result) -> str:
    return f"No priors alone: {sweep['before_why']}."


def _engine(result: Result) -> list[str]:
    units = {
        "base": "step",
        "per_sequence": "sequence",
        "per_held_token": "held token",
        "per_prefill_token": "prompt token",
    }
    laws = [
        (
            law["model"],
            f"a {units[name]}",
            told(figures["prior"]),
            told(figures.get("with_priors")),
            told(figures.get("without_priors")),
        )
        for law in result["laws"]
        for name, figures in law["parameters_us"].items()
    ]
    memory = [
        (
            sweep["name"],
            "bytes per token of KV cache",
            told(sweep["kv_bytes_per_token"]),
            told(None if sweep["kv_bytes_per_token_told"] is None else float(sweep["kv_bytes_per_token_told"])),
        )
        for sweep in result["sweeps"]
    ] + [
        (
            row["model"],
            "tokens of KV cache at the default utilization",
            told(row["logged_tokens"]),
            told(row["told_tokens"]),
        )
        for row in result["kv_pool"]
    ]
    for speed in result["prompts"]:
        memory += [
            (speed["recording"], "prompt tokens/s while busy", told(speed["busy_tok_s"]), told(speed["told_tok_s"])),
            (speed["recording"], "prompt tokens/s, idle moments included", told(speed["mean_tok_s"]), "-"),
        ]
    played = [
        (
            curve["file"].removesuffix(".csv"),
            curve["mix"],
            f"{point['clients']:g}",
            _signed(point["tpot_error_pct"]),
            _signed(point["ttft_error_pct"]),
            _signed(point["unseen_mix_tpot_error_pct"]),
        )
        for curve in result["simulated"]
        for point in curve["points"]
    ]
    types = [
        (
            str(pair["clients"]),
            f"{pair['prompt_tokens']:.0f} + {pair['output_tokens']:.0f}",
            told(pair["auto_tpot_ms"]),
            told(pair["fp8_tpot_ms"]),
            _signed(pair["change_pct"]),
        )
        for pair in result["kv_types"]
    ]
    return [
        TYPES,
        "",
        *table(("clients", "tokens", "TPOT, 16 bit, ms", "TPOT, fp8, ms", "change, %"), types),
        "",
        "The structured law, microseconds:",
        "",
        *table(("model", "for", "prior", "fitted with priors", "without"), laws),
        "",
        *table(("engine", "figure", "measured", "foretold"), memory),
        "",
        "The simulated engine with the fitted law, error in %:",
        "",
        *table(("sweep", "lengths", "clients", "TPOT", "TTFT", "TPOT, lengths outside the fit"), played),
    ]


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"
