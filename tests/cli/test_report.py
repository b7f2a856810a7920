"""The HTML report: stands for itself, says what the terminal says, and obeys no name that comes from metrics."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.servers import prometheus, serving
from tests.diagnosis.recorded import RECORDINGS
from tests.observation.fleet import NOW, Engine, fleet
from tests.overview.elements import NASTY as NASTY_TEXTS
from tests.overview.elements import Elements
from typer.testing import CliRunner, Result

from vllm_autotuner.api.knobs import EngineKnobs
from vllm_autotuner.cli.command_tree import app
from vllm_autotuner.cli.diagnosis.request import subject_from
from vllm_autotuner.cli.evaluate.evaluation import ServiceReport, evaluate
from vllm_autotuner.cli.evaluate.levels import Levels
from vllm_autotuner.cli.evaluate.moments import Span, recorded
from vllm_autotuner.cli.evaluate.service_groups import ServiceName, one_service
from vllm_autotuner.cli.options.objective_options import ObjectiveOptions
from vllm_autotuner.cli.report.page import ReportFacts, page
from vllm_autotuner.cli.report.plots import bands, plot
from vllm_autotuner.diagnosis.classes import DiagnosisClass
from vllm_autotuner.observation.snapshot import WindowSettings
from vllm_autotuner.overview.class_looks import LOOKS

KV = str(RECORDINGS / "kv-saturation.om.gz")
SUBJECT = subject_from(ObjectiveOptions(ttft="2s"), engine_args="--max-num-seqs 64")


def run(*args: str) -> Result:
    result = CliRunner().invoke(app, ["diagnose", *args])
    assert "Traceback" not in result.output
    return result


def facts(**changes: Any) -> ReportFacts:
    given: dict[str, Any] = {
        "source": "s",
        "at": NOW,
        "span": Span(NOW - 60, NOW),
        "version": "1",
        "knobs": EngineKnobs(),
    }
    return ReportFacts(**{**given, **changes})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("report") / "report.html"
    result = run("--recording", KV, "--engine-args", "--max-num-seqs 64", "--ttft", "2s", "--html", str(file))
    assert result.exit_code == 0, result.output
    assert list(file.parent.iterdir()) == [file]
    return file.read_text(encoding="utf-8")


def test_a_report_loads_nothing_and_runs_nothing(written: str) -> None:
    found = Elements(written).elements
    assert {tag for tag, _ in found}.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base", "form"})
    for tag, attributes in found:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href"):
                assert (value or "").startswith("#"), (tag, name, value)
    assert "http://" not in written
    assert "https://" not in written
    assert re.search(r"url\((?!#)", written) is None
    assert "@import" not in written


def test_a_report_says_what_was_seen_where_and_when(written: str) -> None:
    text = Elements(written).text
    for part in (
        *("recording kv-saturation.om.gz", "2026-11-20T21:42:26.408Z", "--max-num-seqs=64", "TTFT p95 at most 2 s"),
        *("Healthy", "PreemptionThrash", "Lower --max-num-seqs", "KV usage, maximum", "Not a tuning problem"),
        *("TTFT p95", "TPOT p95", "KV cache used", "running", "waiting", "objective", "time (UTC)"),
    ):
        assert part in text, part


def test_text_and_lines_of_plots_take_the_colours_of_the_page(written: str) -> None:
    picture = written[written.index("<svg") : written.index("</svg>")]
    assert "currentColor" in picture
    assert "#000000" not in picture.replace("fill: #000000", "")
    assert "#ffffff" not in re.sub(r"<text[^>]*>", "", picture)


def test_the_same_recording_gives_the_same_report(written: str, tmp_path: Path) -> None:
    file = tmp_path / "again.html"
    run("--recording", KV, "--engine-args", "--max-num-seqs 64", "--ttft", "2s", "--html", str(file))
    assert file.read_text(encoding="utf-8") == written


def test_services_of_a_fleet_are_one_report(tmp_path: Path) -> None:
    file = tmp_path / "fleet.html"
    full = {"vllm:num_requests_running": 60.0, "vllm:num_requests_waiting": 21.0, "vllm:kv_cache_usage_perc": 0.998}
    source = fleet(Engine(pod="chat-0"), Engine(pod="search-0", gauges=full))
    with serving(prometheus(source, at=NOW)) as url:
        where = url.replace("http://", "http://me:url-passw0rd@")
        result = run("--prometheus", where, "--at", f"{NOW:.0f}", "--since", "2m", "--html", str(file))
    assert result.exit_code == 0, result.output
    found = Elements(file.read_text(encoding="utf-8"))
    assert [tag for tag, _ in found.elements].count("svg") == 2
    assert "demo/chat" in found.text
    assert "demo/search" in found.text
    assert "url-passw0rd" not in file.read_text(encoding="utf-8")
    identifiers = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    used = re.findall(r"url\(#([^)]*)\)|<use href=\"#([^\"]*)", file.read_text(encoding="utf-8"))
    assert {one or other for one, other in used} <= set(identifiers)


async def _report() -> ServiceReport:
    source = fleet(Engine(begin=NOW - 60))
    (report,) = await evaluate(
        source,
        schedule=recorded(Span(NOW - 60, NOW)),
        grouping=one_service,
        subject=SUBJECT,
        settings=WindowSettings(),
    )
    return report


@pytest.fixture
async def report() -> ServiceReport:
    return await _report()


NASTY = st.text() | st.sampled_from(NASTY_TEXTS)


@settings(max_examples=60, deadline=None)
@given(namespace=NASTY, name=NASTY, model=NASTY, note=NASTY, source=NASTY)
async def test_no_name_or_note_changes_the_page_around_it(
    namespace: str, name: str, model: str, note: str, source: str
) -> None:
    # One evaluation: the plot holds no foreign text, and drawing it a hundred times proves nothing.
    plain = replace(await _report(), levels=(), model="m")
    nasty = replace(plain, service=ServiceName(f"n{namespace}", f"s{name}"), model=f"m{model}")
    evidence = tuple(replace(one, name=f"e{note}", note=note) for one in plain.diagnosis.evidence)
    told = replace(plain.diagnosis, message=f"d{note}", evidence=evidence)
    expected = Elements(page([plain], facts=facts(notes=("n",))))
    found = Elements(page([replace(nasty, diagnosis=told)], facts=facts(source=source, notes=(f"n{note}",))))
    assert found.shape == expected.shape


async def test_a_plot_holds_no_text_from_metrics(report: ServiceReport) -> None:
    named = replace(report, service=ServiceName("", "evil-service-name"), model="evil-model-name")
    found = page([named], facts=facts())
    assert "evil" not in found[found.index("<svg") : found.index("</svg>")]


def test_without_matplotlib_everything_but_the_plot_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find, path = importlib.util.find_spec, tmp_path / "r.html"
    whole = run("--recording", KV, "--html", str(path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    result = run("--recording", KV, "--html", str(path))
    assert (result.exit_code, result.stdout) == (0, whole.stdout)
    assert "pip install '.[report]'" in result.stderr
    page = path.read_text(encoding="utf-8")
    assert "<svg" not in page
    assert "it needs matplotlib" in page
    assert re.search(r"PreemptionThrash.*% of the time", page)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (".", "is a folder"),
        ("kv.om.gz", "is the recording itself"),
        ("no/such/r.html", "does not exist"),
        ("a" * 300, "File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, where: str, says: str) -> None:
    recording = tmp_path / "kv.om.gz"
    recording.write_bytes(Path(KV).read_bytes())
    result = run("--recording", str(recording), "--html", str(tmp_path / where))
    assert (result.exit_code, result.stdout) == (1, "")
    assert says in result.stderr
    assert recording.read_bytes() == Path(KV).read_bytes()


# --- classes and bands ------------------------------------------------------------------------------------------------


def test_every_class_has_a_look_of_its_own() -> None:
    assert set(DiagnosisClass) == set(LOOKS)
    looks = [(look.colour, look.hatch) for look in LOOKS.values()]
    assert len(looks) == len(set(looks))
    assert all(re.fullmatch("#[0-9A-F]{6}", look.colour) for look in LOOKS.values())


def level(time: float, named: DiagnosisClass, **values: float | None) -> Levels:
    given: dict[str, Any] = dict.fromkeys(("ttft", "tpot", "kv_mean", "kv_max", "running", "waiting"), None)
    return Levels(time=time, named=named, engines=1, **{**given, **values})


def test_bands_touch_and_reach_back_to_the_evaluation_before() -> None:
    healthy, full = DiagnosisClass.HEALTHY, DiagnosisClass.KV_CACHE_SATURATED
    found = bands([level(0, healthy), level(5, healthy), level(10, full), level(15, full), level(20, healthy)])
    assert [(band.start, band.end, band.named) for band in found] == [(0, 5, healthy), (5, 15, full), (15, 20, healthy)]
    assert bands([]) == []


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"ttft": 0.0, "tpot": 0.0, "kv_mean": 0.0, "kv_max": 0.0, "running": 0.0, "waiting": 0.0},
        {"ttft": 1e-9, "tpot": 1e9, "kv_mean": 1.0, "kv_max": 1.0, "running": 1e12, "waiting": 1e12},
    ],
    ids=["nothing is known", "all zero", "absurd"],
)
def test_any_levels_can_be_drawn(values: dict[str, float]) -> None:
    levels = [level(NOW + 5 * index, named, **values) for index, named in enumerate(DiagnosisClass)]
    assert plot(levels, targets=SUBJECT.targets, identity=0).startswith("<svg viewBox=")
