"""The stand-in for the API server refuses what the real one refuses (`e2e/test_api_contract.py` asks it the same)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
from tests.api.cases import CASES, Case
from tests.control.api_contract import REQUESTS, STATUSES, Body, Request, StatusCase, is_answered, is_judged
from tests.control.cluster_model import ApiServer
from tests.control.desk import START
from tests.control.field_owners import Owners

from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.errors import from_response


class StandIn:
    """The model of the tests, with nobody behind it."""

    namespace = "prod"

    def __init__(self) -> None:
        self.api = ApiServer(now=START)

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self.api)

    async def admit(self, body: Body) -> None:
        self.api.admit(body)

    async def post(self, body: Body) -> Body:
        return self.api.post(body)

    async def put(self, body: Body, *, subresource: str = "") -> Body:
        return self.api.put(body, subresource=subresource)

    async def remove(self, name: str) -> None:
        self.api.remove(name)

    async def post_deployment(self, body: Body) -> None:
        name = body["metadata"]["name"]
        metadata = {**body["metadata"], "uid": f"theirs-{self.api.version}", "generation": 1}
        self.api.owners["Deployment", name] = Owners()
        self.api._store("Deployment", name, {**body, "metadata": metadata, "status": {}})

    async def remove_deployment(self, name: str) -> None:
        del self.api.objects["Deployment", name]

    async def relabel_deployment(self, name: str, team: str) -> None:
        self.api.overwrite(name, lambda body: body["metadata"].setdefault("labels", {}).update(team=team), by="kubectl")

    def interrupted(self, act: Callable[[], Awaitable[object]]) -> Cluster:
        done = False

        async def once() -> None:
            nonlocal done
            if not done:
                done = True
                await act()

        self.api.meanwhile = once
        return self.cluster

    @asynccontextmanager
    async def throttled(self) -> AsyncIterator[Cluster]:
        body = b"Too many requests, please try again later."
        answer = from_response(status=429, body=body, headers={"Retry-After": "1"}, request="PUT")
        self.api.refuses = lambda verb, name: answer
        yield self.cluster
        self.api.refuses = lambda verb, name: None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_a_spec_is_let_in_or_refused(case: Case) -> None:
    await is_judged(StandIn(), case)


@pytest.mark.parametrize("case", STATUSES, ids=lambda case: case.id)
async def test_a_status_is_stored_or_refused(case: StatusCase) -> None:
    await is_answered(StandIn(), case)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.id)
async def test_a_request_is_answered_as_by_the_real_one(request_: Request) -> None:
    await request_.act(StandIn())
