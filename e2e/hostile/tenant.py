"""Who attacks: somebody with every right in a namespace of his own, and what he is told about his objects.

Apart from the attacks, which say what he does. Must not: read anything of the operator but what is on his own objects.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from e2e import odd_engines
from e2e.hostile.scraping import JOB
from e2e.side_by_side import Play, Refused, capped
from e2e.stage import MODEL, condition

SHOWN: Final = 160
"""Characters of a message that are shown in a table."""
OBJECTS: Final = "/apis/vllm-autotuner.dev/v1alpha1/namespaces/{namespace}/vllmservices"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A namespace and whoever owns it."""

    play: Play

    @property
    def namespace(self) -> str:
        """His own."""
        return self.play.stage.namespace

    async def post(self, text: str) -> None:
        """Create a VLLMService from JSON that is too deep or too large for the usual ways. Raises Refused."""
        path = OBJECTS.format(namespace=self.namespace)
        answer = await self.play.stage.api.post(path, content=text, headers={"Content-Type": "application/json"})
        if answer.status_code != httpx.codes.CREATED:
            raise Refused(answer.json()["message"])

    async def creates(self, name: str, **spec: Any) -> None:
        """Create a VLLMService like `capped`, which is diagnosed only, with these differences. Raises Refused."""
        tuning = {"mode": "Recommend"} | spec.pop("tuning", {})
        body = capped(self.namespace, name, tuning=tuning, **spec)
        await self.post(json.dumps(body))

    async def adopts(self, name: str, **container: Any) -> None:
        """Create a Deployment with one container and a VLLMService that names it."""
        labels = {"app": name} | container.pop("labels", {})
        engine = {"name": "server", "ports": [{"containerPort": 8000}], **container.pop("container")}
        pod = {"containers": [engine], "terminationGracePeriodSeconds": 1, **container}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
        found = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        answer = await self.play.stage.api.post(path, json=found)
        if answer.status_code != httpx.codes.CREATED:
            raise Refused(answer.json()["message"])
        body = capped(self.namespace, name, tuning={"mode": "Recommend"})
        body["spec"] = {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "tuning": {"mode": "Recommend", "maxNumSeqs": {"min": 2, "max": 8}},
        }
        await self.post(json.dumps(body))

    async def runs(self, name: str, *, image: str, job: str, **environment: str) -> None:
        """Create a bare pod of an odd engine that a job of its own scrapes."""
        env = [{"name": key, "value": value} for key, value in environment.items()]
        engine = {"name": "server", "image": odd_engines.image(image), "args": ["--model", MODEL], "env": env}
        engine["ports"] = [{"containerPort": 8000}]
        body = {
            "metadata": {"name": name, "labels": {JOB: job}},
            "spec": {"containers": [engine], "terminationGracePeriodSeconds": 1},
        }
        answer = await self.play.stage.api.post(f"/api/v1/namespaces/{self.namespace}/pods", json=body)
        if answer.status_code != httpx.codes.CREATED:
            raise Refused(answer.json()["message"])

    async def edits_status(self, name: str, status: Mapping[str, Any]) -> None:
        """Write into a status, as no tenant may and some can."""
        await self.play.edit_status(name, status)

    async def status(self, name: str) -> Mapping[str, Any]:
        """The status of one of his objects; empty while there is none. By kubectl, which reads any depth."""
        kubectl = self.play.stage.bed.kubectl
        text = await asyncio.to_thread(kubectl, "-n", self.namespace, "get", "vllm", name, "-o", "jsonpath={.status}")
        found: Mapping[str, Any] = json.loads(text or "{}")
        return found

    async def stalled(self, name: str, *words: str) -> str:
        """What condition Stalled says of an object, where it has all of these words; else empty."""
        status = await self.status(name)
        return _said(status, "Stalled", words) if condition(status, "Stalled") == "True" else ""

    async def told(self, name: str, *words: str) -> str:
        """What any condition or the diagnosis of an object says with all of these words; else empty."""
        status = await self.status(name)
        kinds = [each["type"] for each in status.get("conditions", [])]
        found = [said for kind in kinds if (said := _said(status, kind, words))]
        diagnosis = status.get("diagnosis") or {}
        if all(word in diagnosis.get("message", "") for word in words):
            found.append(f"{diagnosis.get('class')}: {_short(diagnosis.get('message', ''))}")
        return found[0] if found else ""

    async def shows(self, *secrets: str) -> bool:
        """Whether a status or an Event of the namespace has one of these texts."""
        kubectl = self.play.stage.bed.kubectl
        what = ("get", "vllm,events", "-o", "json")
        text = await asyncio.to_thread(kubectl, "-n", self.namespace, *what)
        return any(secret in text for secret in secrets)


def _said(status: Mapping[str, Any], kind: str, words: tuple[str, ...]) -> str:
    for each in status.get("conditions", []):
        if each["type"] == kind and all(word in f"{each['reason']} {each['message']}" for word in words):
            return f"{kind}, {each['reason']}: {_short(each['message'])}"
    return ""


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
