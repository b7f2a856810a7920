"""The real API server refuses what the stand-in of the tests refuses: the same requests, under the chart's rights.

Where one of these fails, the stand-in (`tests/control/cluster_model.py`) is kinder or stricter than the real one, and
so is every test of the fleet loop.
"""

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from tests.api.cases import CASES, Case
from tests.control.api_contract import REQUESTS, STATUSES, Body, Request, is_answered, is_judged

from e2e.bed import Bed
from e2e.operator_account import ACCOUNT, install
from vllm_autotuner.api.service import VLLMService, parse_service
from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.client import MERGE_PATCH, Connection, connect
from vllm_autotuner.cluster.errors import ClusterError, NotFound, Refused
from vllm_autotuner.cluster.kinds import DEPLOYMENT, VLLM_SERVICE
from vllm_autotuner.cluster.throttle import Throttle, ThrottleSettings
from vllm_autotuner.workload.rendering import render_deployment

REFUSED_FOR_LOAD = "refused-for-load"
SECONDS = 120.0
"""For the API server to notice a new priority level, and to be asked by two at once."""
CROWD = 12


class Interrupted:
    """A connection under which somebody else acts right before the first write."""

    def __init__(self, connection: Connection, act: Callable[[], Awaitable[object]]) -> None:
        self._connection = connection
        self._act: Callable[[], Awaitable[object]] | None = act

    async def request(self, method: str, path: str, **options: Any) -> Body:
        if method != "GET" and self._act is not None:
            act, self._act = self._act, None
            await act()
        return await self._connection.request(method, path, **options)


class UntilRefused:
    """A connection that asks as a dry run, again and again, until the API server has no seat for it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def request(self, method: str, path: str, *, query: Mapping[str, str], **options: Any) -> Body:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            await self._connection.request(method, path, query={**query, "dryRun": "All"}, **options)
        raise AssertionError("the priority level never refused a request")


class RealWorld:
    """The bed's API server, and a namespace in it."""

    def __init__(self, bed: Bed, namespace: str, *, operator: Connection, admin: Connection) -> None:
        self.bed, self.namespace = bed, namespace
        self._operator, self._admin = operator, admin

    @property
    def cluster(self) -> Cluster:
        return cluster_on(self._operator)

    async def admit(self, body: Body) -> None:
        await self._admin.request("POST", VLLM_SERVICE.path(self.namespace), body=body, query={"dryRun": "All"})

    async def post(self, body: Body) -> Body:
        # The HTTP client warns of bodies of a megabyte: no user of the API sends them this way.
        warnings.simplefilter("ignore", ResourceWarning)
        return await self._admin.request("POST", VLLM_SERVICE.path(self.namespace), body=body)

    async def put(self, body: Body, *, subresource: str = "") -> Body:
        path = VLLM_SERVICE.path(self.namespace, body["metadata"]["name"], subresource=subresource or None)
        return await self._admin.request("PUT", path, body=body)

    async def remove(self, name: str) -> None:
        await self._admin.request("DELETE", VLLM_SERVICE.path(self.namespace, name))

    async def post_deployment(self, body: Body) -> None:
        await self._admin.request("POST", DEPLOYMENT.path(self.namespace), body=body)

    async def remove_deployment(self, name: str) -> None:
        path = DEPLOYMENT.path(self.namespace, name)
        await self._admin.request("DELETE", path)
        with suppress(NotFound):
            while True:
                await self._admin.request("GET", path)
                await asyncio.sleep(0.02)

    async def relabel_deployment(self, name: str, team: str) -> None:
        path, body = DEPLOYMENT.path(self.namespace, name), {"metadata": {"labels": {"team": team}}}
        await self._admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    def interrupted(self, act: Callable[[], Awaitable[object]]) -> Cluster:
        return cluster_on(cast(Connection, Interrupted(self._operator, act)))

    @asynccontextmanager
    async def throttled(self) -> AsyncIterator[Cluster]:
        """The operator's rights under a name of its own, for which the API server has one seat, and that one is taken.

        A request that finds nobody else is always let in: so many others ask that there is always somebody.
        """
        account = {"kind": "ServiceAccount", "name": REFUSED_FOR_LOAD, "namespace": self.namespace}
        named = {"name": f"{self.namespace}-{REFUSED_FOR_LOAD}"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT}
        limited = {
            "nominalConcurrencyShares": 0,
            "lendablePercent": 0,
            "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"},
        }
        everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
        who = {"kind": "ServiceAccount", "serviceAccount": {"name": account["name"], "namespace": self.namespace}}
        flow = "flowcontrol.apiserver.k8s.io/v1"
        objects: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": dict(list(account.items())[1:])},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": named,
                "roleRef": role,
                "subjects": [account],
            },
            {
                "apiVersion": flow,
                "kind": "PriorityLevelConfiguration",
                "metadata": named,
                "spec": {"type": "Limited", "limited": limited},
            },
            {
                "apiVersion": flow,
                "kind": "FlowSchema",
                "metadata": named,
                "spec": {
                    "matchingPrecedence": 2,
                    "priorityLevelConfiguration": named,
                    "rules": [{"subjects": [who], "resourceRules": [everything]}],
                },
            },
        ]
        self.bed.apply(objects)
        try:
            kubeconfig = self.bed.service_account_kubeconfig(self.namespace, REFUSED_FOR_LOAD)
            async with connect(kubeconfig) as connection:
                crowd = [asyncio.create_task(self._ask_for_ever(connection)) for _ in range(CROWD)]
                try:
                    yield cluster_on(cast(Connection, UntilRefused(connection)))
                finally:
                    for task in crowd:
                        task.cancel()
                    await asyncio.gather(*crowd, return_exceptions=True)
        finally:
            kinds = ("clusterrolebinding", "flowschema", "prioritylevelconfiguration")
            self.bed.kubectl("delete", *(f"{kind}/{named['name']}" for kind in kinds), "--wait=false")

    async def _ask_for_ever(self, connection: Connection) -> None:
        while True:
            with suppress(ClusterError):
                await connection.request("GET", VLLM_SERVICE.path(None))


def cluster_on(connection: Connection) -> Cluster:
    return Cluster(connection, throttle=Throttle(ThrottleSettings(), monotonic=time.monotonic), instance="test_1")


@pytest.fixture(scope="session")
def kubeconfig(bed: Bed) -> Path:
    return install(bed)


@pytest.fixture
async def world(bed: Bed, kubeconfig: Path, namespace: str) -> AsyncIterator[RealWorld]:
    async with connect(kubeconfig) as operator, connect(bed.admin_kubeconfig) as admin:
        yield RealWorld(bed, namespace, operator=operator, admin=admin)


async def test_specs_are_let_in_or_refused_as_by_the_stand_in(world: RealWorld, subtests: pytest.Subtests) -> None:
    for case in CASES:
        with subtests.test(case.id):
            await is_judged(world, case)


async def test_statuses_are_stored_or_refused_as_by_the_stand_in(world: RealWorld, subtests: pytest.Subtests) -> None:
    for case in STATUSES:
        with subtests.test(case.id):
            try:
                await is_answered(world, case)
            finally:
                await world.remove("chat")


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.id)
async def test_a_request_is_answered_as_by_the_stand_in(world: RealWorld, request_: Request) -> None:
    await request_.act(world)


TYPOS: dict[str, dict[str, Any]] = {
    "a field of the pod": {"spec": {"nodeSelectr": {"pool": "gpus"}}},
    "a field of a container": {"spec": {"containers": [{"name": "vllm", "resurces": {}}]}},
    "a field of the metadata": {"metadata": {"lables": {"a": "b"}}},
    "a field beside spec": {"spek": {"nodeSelector": {"pool": "gpus"}}},
    "another type": {"spec": {"nodeSelector": "gpus"}},
    "a variable twice": {"spec": {"containers": [{"name": "vllm", "env": [{"name": "A", "value": "1"}] * 2}]}},
    "a quantity that is none": {"spec": {"containers": [{"name": "vllm", "resources": {"limits": {"cpu": "many"}}}]}},
    "a volume that is nowhere": {
        "spec": {"containers": [{"name": "vllm", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}]}
    },
    "a policy that is none": {"spec": {"restartPolicy": "Sometimes"}},
    "a text for a number": {"spec": {"terminationGracePeriodSeconds": "long"}},
    "a number that is too large": {"spec": {"terminationGracePeriodSeconds": 10**30}},
    "a fraction for a number": {"spec": {"terminationGracePeriodSeconds": 1.5}},
    "a list for an object": {"spec": {"securityContext": [1]}},
    "nothing in a list": {"spec": {"tolerations": [None]}},
    "a label that is none": {"metadata": {"labels": {"a b": "c"}}},
    "an empty name": {"spec": {"volumes": [{"name": "", "emptyDir": {}}]}},
    "a size that is none": {"spec": {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "1Gb?"}}]}},
    "a number as a value": {"spec": {"containers": [{"name": "vllm", "env": [{"name": "A", "value": 1}]}]}},
}
"""Pod templates that the CRD lets in, for it passes a pod's fields through, and that no pod can have."""


@pytest.mark.parametrize("typo", TYPOS)
async def test_a_typo_in_a_pod_template_is_the_fault_of_its_object(world: RealWorld, typo: str) -> None:
    """Refused is told on the object (`Stalled`); Unavailable would count as an outage of the API server."""
    manifest = Case(id="", changes={"podTemplate": TYPOS[typo], "deletionPolicy": "Delete"}).manifest(world.namespace)
    service = parse_service(await world.post(manifest))
    assert isinstance(service, VLLMService)
    assert service.spec.engine is not None
    with pytest.raises(Refused):
        await world.cluster.apply(render_deployment(service, service.spec.engine.knobs, 0), epoch=7)
