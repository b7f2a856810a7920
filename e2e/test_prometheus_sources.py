"""Several Prometheus servers by name (`run --prometheus-sources`): each service is read from the one that it names."""

from functools import partial
from pathlib import Path

import pytest
import yaml

from e2e.bed import Bed
from e2e.operator_account import vllm_service
from e2e.side_by_side import PATIENCE
from e2e.stage import ENGINE_IMAGE, Stage, engine_env, until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_service_is_read_from_the_source_that_it_names(
    bed: Bed, engines: None, namespace: str, tmp_path: Path
) -> None:
    """Two servers that each hold the series of one service, and a name that the operator does not know."""
    sources = tmp_path / "sources.yaml"
    sources.write_text(yaml.safe_dump({"far": {"url": bed.prometheus_url, "match": ["pod=~far-.*"]}}))
    named = {"near": None, "far": "far", "lost": "fra", "near-elsewhere": "far"}
    async with Stage(bed, namespace, interval="1s", window="6s") as stage:
        for name, source in named.items():
            spec = {"engine": {"image": ENGINE_IMAGE, "maxNumSeqs": 4}, "podTemplate": engine_env(startup_seconds=1)}
            stage.apply(vllm_service(namespace, name, **spec, **({"prometheus": {"source": source}} if source else {})))
        stage.start_operator("--prometheus-match", "pod=~near-.*", "--prometheus-sources", str(sources))

        async def diagnosed(name: str, expected: str) -> bool:
            found = (await stage.status(name)).get("diagnosis") or {}
            return found.get("class") == expected

        for name in ("near", "far"):
            await until(f"{name} is seen", partial(diagnosed, name, "Idle"), seconds=PATIENCE)
        for name in ("lost", "near-elsewhere"):
            await until(f"{name} is blind", partial(diagnosed, name, "MetricsBlind"), seconds=PATIENCE)
        [why] = [
            each["message"] for each in (await stage.status("lost"))["conditions"] if each["type"] == "MetricsAvailable"
        ]
        assert "metrics source fra is not configured" in why
