"""Each command of the quickstart page and of the README, copied from there and run in the order of the page.

On the bed an address is another one, the image has no registry, the operator looks every second, and what looks at all
of the cluster looks at one namespace only: other tests share it. Everything else is what the page says.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest
from tests.page_commands import QUICKSTART, README, commands

from e2e.bed import Bed
from e2e.shell import sh
from e2e.side_by_side import Play, brief, change_of, side_by_side
from e2e.stage import MODEL, Empty, NotSeen, condition, names_of, until
from e2e.test_adoption import deployment
from vllm_autotuner.simulation.load import Traffic

SERVED: Final = "prod"
"""The namespace that the pages name."""
OPERATOR: Final = "vllm-autotuner"
"""The operator's, there."""
SECONDS: Final = 300.0
NOT_RUN: Final[Mapping[str, str]] = {
    "git clone ": "needs a remote",
    "make ": "sets up a bed or a cluster of its own, and has its own checks",
    "python3 -m venv ": "needs a package registry, as the next line does",
    "pip install ": "needs a package registry; tests/release builds and checks the wheel",
    "docker build ": "needs a builder of images and a registry",
    "kubectl vllm ...": "is a pattern; test_daily_commands.py runs the plugin",
    "vllm-autotuner simulate ": "needs no cluster: tests/test_readme_output.py",
    "vllm-autotuner diagnose --recording ": "needs no cluster: tests/test_readme_output.py",
}
"""How a command begins -> why it is not run here."""
SEEN: Final[Mapping[str, str]] = {
    "vllm-autotuner diagnose --metrics ": "confidence",
    "vllm-autotuner diagnose --prometheus ": "confidence",
    "vllm-autotuner doctor ": "ok      engines",
    "vllm-autotuner status ": "chat",
    "vllm-autotuner explain ": "max-num-seqs",
    "vllm-autotuner history ": "chat",
    "vllm-autotuner export ": "max-num-seqs",
    "vllm-autotuner approve ": "approved",
    "vllm-autotuner rollback ": "requested",
    "vllm-autotuner pause ": "paused",
    "vllm-autotuner kill-switch on": "on",
    "kubectl get vllm ": "chat",
}
"""How a command begins -> what its answer has in it."""
MORE: Final[Mapping[str, str]] = {
    "helm install ": f"--set interval=1s --set window=6s --set 'watchNamespaces={{{SERVED}}}'",
    "vllm-autotuner diagnose --prometheus ": f"--namespace {SERVED}",
    "vllm-autotuner doctor ": f"--match namespace={SERVED}",
}
"""How a command begins -> what the bed adds."""
OF_ADVICE: Final = ("vllm-autotuner explain ", "vllm-autotuner export ")
"""How the commands begin that tell of a recommendation."""
ENGINE: Final = ["--model", MODEL, "--max-num-seqs", "16"]
CROWD: Final = Traffic(model=MODEL, prompt_tokens=(20, 60), output_tokens=(60, 100))


class Reader:
    """Somebody with a cluster and the Deployment that `examples/adopt.yaml` names, who follows a page."""

    def __init__(self, stage: Empty) -> None:
        self.stage = stage
        self.before: Mapping[str, Callable[[], Awaitable[Any]]] = {
            "vllm-autotuner diagnose --prometheus": self.is_scraped,
            "vllm-autotuner doctor": self.is_scraped,
            "vllm-autotuner status -n": self.is_adopted,
            "vllm-autotuner explain": self.has_a_recommendation,
            "vllm-autotuner export": self.has_a_recommendation,
            "vllm-autotuner rollback": self.has_a_change,
        }
        """How a command begins -> what must be there before somebody would type it."""

    async def follows(self, command: str) -> None:
        """Run one command, and look at its answer."""
        for begin, ready in self.before.items():
            if command.startswith(begin):
                await ready()
        if " approve " in command:
            answer = await self.approved(command)
        elif command.startswith(OF_ADVICE):
            answer = await self.advised(command)
        else:
            answer = await self.typed(command)
        for begin, part in SEEN.items():
            if command.startswith(begin):
                assert part in answer, f"{command}\n{answer}"
        if command.startswith("helm install"):
            await until("the operator is available", self.operator_is_available, seconds=SECONDS)
        if '"Automatic"' in command:
            # The next commands of the README are about the change that this allows.
            await self.has_a_change()

    async def typed(self, command: str) -> str:
        """Run it with the addresses of the bed."""
        [pod] = (await self.stage.ready_pods("qwen"))[:1]
        for here, there in {
            "http://localhost:8000": f"http://{pod['status']['podIP']}:8000",
            "http://localhost:9090": self.stage.bed.prometheus_url,
            "http://prometheus.monitoring:9090": self.stage.bed.prometheus_url,
            "http://prometheus-operated.monitoring:9090": self.stage.bed.prometheus_url,
            "REGISTRY/": "",
        }.items():
            command = command.replace(here, there)
        more = [added for begin, added in MORE.items() if command.startswith(begin)]
        return await sh(self.stage.bed, " ".join((command, *more)))

    async def approved(self, command: str) -> str:
        """Until the change begins: a recommendation that went and came back on a busy machine is approved anew."""
        answer = ""

        async def begun() -> bool:
            nonlocal answer
            if change_of(await self.stage.status("chat")):
                return True
            with suppress(AssertionError):
                answer = await self.typed(command)
            return False

        await until("the approved change begins", begun, seconds=SECONDS, every=5)
        return answer

    async def advised(self, command: str) -> str:
        """Until it tells of the recommendation: on a busy machine that may go for a moment."""
        answer = ""

        async def told() -> bool:
            nonlocal answer
            with suppress(AssertionError):
                answer = await self.typed(command)
            return "max-num-seqs" in answer

        await until(f"{command} tells of the recommendation", told, seconds=SECONDS, every=2)
        return answer

    async def operator_is_available(self) -> bool:
        """As `helm install --wait` would ask."""
        path = f"/apis/apps/v1/namespaces/{OPERATOR}/deployments/vllm-autotuner"
        return bool((await self.stage.get(path)).get("status", {}).get("availableReplicas"))

    async def is_scraped(self) -> None:
        """Prometheus knows its pods, and none that served under the same name a moment ago."""

        async def probe() -> bool:
            window = f'count_over_time(vllm:num_requests_running{{namespace="{SERVED}"}}[30s])'
            found = {each["metric"]["pod"]: float(each["value"][1]) for each in await self.stage.prometheus(window)}
            serving = set(names_of(await self.stage.ready_pods("qwen")))
            return found.keys() == serving and all(scrapes > 5 for scrapes in found.values())

        await until("only the pods that serve are in the metrics of 30 s", probe, seconds=SECONDS)

    async def is_adopted(self) -> None:
        """It has been looked at."""
        await self.status_when("adopted", lambda status: condition(status, "Adopted") == "True")

    async def has_a_recommendation(self) -> None:
        """The load has been seen."""
        await self.status_when(
            "a recommendation",
            lambda status: (status.get("recommendation") or {}).get("knob") == "maxNumSeqs" or change_of(status),
        )

    async def has_a_change(self) -> None:
        """One is under way."""
        await self.status_when("a change under way", change_of)

    async def status_when(self, what: str, holds: Callable[[Mapping[str, Any]], object]) -> None:
        """Wait for a status about which `holds` is true. Raises NotSeen with what there is."""

        async def probe() -> object:
            return holds(await self.stage.status("chat"))

        try:
            await until(what, probe, seconds=SECONDS)
        except NotSeen as error:
            raise NotSeen(f"{error}; its status: {brief(await self.stage.status('chat'))}") from None


@asynccontextmanager
async def following(bed: Bed) -> AsyncIterator[Reader]:
    """The namespaces are gone afterwards, with everything in them: the next page begins anew."""
    await asyncio.to_thread(bed.create_namespace, SERVED)
    async with Empty(bed, SERVED) as stage:
        stage.selectors["qwen"] = "app=qwen"
        body = deployment("qwen", step_base_ms=20, step_per_seq_ms=0.2)
        body["spec"]["template"]["spec"]["containers"][0]["args"] = ENGINE
        await asyncio.to_thread(bed.kubectl, "-n", SERVED, "create", "-f", "-", input=json.dumps(body))
        await until("qwen serves", lambda: stage.ready_pods("qwen"), seconds=SECONDS)
        await stage.load_on("qwen", clients=40, traffic=CROWD)
        try:
            yield Reader(stage)
        finally:
            await sh(bed, f"kubectl delete vllm --all -n {SERVED} --timeout={SECONDS:.0f}s")
            await sh(bed, f"helm uninstall vllm-autotuner -n {OPERATOR} --ignore-not-found")
            await sh(bed, f"kubectl delete namespace {SERVED} {OPERATOR} --timeout={SECONDS:.0f}s --ignore-not-found")


def run_here(page: list[str]) -> list[str]:
    return [command for command in page if not command.startswith(tuple(NOT_RUN))]


async def follow_quickstart(reader: Reader) -> None:
    for command in run_here(commands(QUICKSTART)):
        await reader.follows(command)
    await reader.status_when("paused", lambda status: condition(status, "Paused") == "True")


async def follow_readme(reader: Reader) -> None:
    """The service is the quickstart's: the README's own needs a GPU that the bed does not have, and is checked by the
    API server."""
    everything = run_here(commands(README))
    installed = next(at for at, each in enumerate(everything) if each.startswith("helm install"))
    for command in everything[: installed + 1]:
        await reader.follows(command)
    described = README.read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]
    bed = reader.stage.bed
    bed.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=described)
    await sh(bed, f"kubectl apply -n {SERVED} -f examples/adopt.yaml")
    for command in everything[installed + 1 :]:
        await reader.follows(command)
    limits = await reader.stage.get(f"/api/v1/namespaces/{OPERATOR}/configmaps/vllm-autotuner-limits")
    assert limits["data"]["killSwitch"] == "true"


@pytest.mark.asyncio(loop_scope="session")
@side_by_side(stage="pages")
async def test_each_command_of_quickstart_and_readme_does_what_the_page_says(play: Play) -> None:
    """One page after the other: both name the same namespaces. What the scene's own operator serves is not touched."""
    for follow in (follow_quickstart, follow_readme):
        async with following(play.stage.bed) as reader:
            await follow(reader)


def test_what_is_not_run_here_is_still_on_a_page() -> None:
    every = [*commands(QUICKSTART), *commands(README)]
    assert [begin for begin in NOT_RUN if not any(each.startswith(begin) for each in every)] == []
