"""The composition root: connects, fills the registry, then runs all parts of the operator until it is stopped.

Apart from the command line, so that a test can run an operator in its own event loop.
Order matters in three places. The operator's tasks start before kopf's, because kopf claims every later task and waits
for it at exit. The loop stops before the lease is released, because a successor may write at once. And the lease is
released in kopf's clean-up, before kopf waits five seconds for stray tasks.
"""

import asyncio
import ctypes
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import kopf
from aiohttp import web

from vllm_autotuner.cluster.adapter import Cluster
from vllm_autotuner.cluster.client import Connection, connect
from vllm_autotuner.cluster.errors import ClusterError
from vllm_autotuner.cluster.lease import Election, Unelected
from vllm_autotuner.cluster.read_only import ReadOnlyCluster
from vllm_autotuner.cluster.throttle import Throttle
from vllm_autotuner.control.operator_settings import OperatorSettings
from vllm_autotuner.control.read.listing import fill, sweep_regularly
from vllm_autotuner.control.read.registry import Registry
from vllm_autotuner.control.run.context import ControlContext
from vllm_autotuner.control.run.fleet_loop import run_fleet_loop
from vllm_autotuner.control.run.handlers import build_registry, build_settings
from vllm_autotuner.control.run.liveness import Heartbeat, LoopLag, sample_loop_lag
from vllm_autotuner.control.run.operator_metrics import OperatorMetrics
from vllm_autotuner.control.run.probes import Probes, serve
from vllm_autotuner.control.run.web_pages import WebPages
from vllm_autotuner.overview.gpu_hours import Prices

logger = logging.getLogger(__name__)

FleetLoop = Callable[[ControlContext, asyncio.Event], Awaitable[None]]

STOP_WITHIN: Final = 5.0
"""Seconds that a stopping task gets before it is cancelled; a write in progress may need as long. Two such waits fit
into the 30 s grace period of a pod with time to spare."""
_ARENA_MAX: Final = -8
"""`M_ARENA_MAX` of glibc's malloc.h."""


class OperatorFailed(Exception):
    """The operator cannot start or continue. The message is one line for the administrator and says what to do."""


async def run(settings: OperatorSettings, *, fleet_loop: FleetLoop = run_fleet_loop) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises OperatorFailed when it cannot start or a part of it dies."""
    _share_one_heap()
    try:
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(connect(settings.kubeconfig))
            # A connection of its own: a renewal must never queue behind the writes of a busy fleet.
            for_lease = await stack.enter_async_context(connect(settings.kubeconfig, pool_size=2))
            context = _context(settings, connection=connection, for_lease=for_lease)
            await context.election.look()
            await _require_crd(context.cluster)
            await fill(context.registry, context.cluster, namespaces=settings.namespaces)
            logger.info("initial list complete", extra={"services": len(context.registry.services)})
            _spare_the_collector()
            await _run_side_by_side(context, connection=connection, fleet_loop=fleet_loop)
    except ClusterError as error:
        raise OperatorFailed(str(error)) from error
    except ExceptionGroup as group:
        raise OperatorFailed("; ".join(dict.fromkeys(map(_in_one_line, _leaves(group))))) from group


def _share_one_heap() -> None:
    """Let all threads allocate from one heap: glibc gives each its own, and what one of them frees stays in it.

    Measured with 1,000 services: 255 MiB at most without this, 242 with it. Other libraries have no such option.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_ARENA_MAX, 1)


def _spare_the_collector() -> None:
    """Keep the collector of reference cycles off what is there for good, and let it look at little at a time.

    What it looks at holds up the event loop. With thresholds of 100,000, 20 and 100 the middle generation grew to two
    million objects, and all waited for 0.9 s while 2,000 services were new; with these for 0.1 s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 1_000)


def _context(settings: OperatorSettings, *, connection: Connection, for_lease: Connection) -> ControlContext:
    metrics = OperatorMetrics()
    throttle = Throttle(settings.throttle, monotonic=time.monotonic)
    election: Election | Unelected
    cluster: Cluster
    if settings.read_only:
        election = Unelected()
        cluster = ReadOnlyCluster(connection, throttle=throttle, instance=settings.identity)
    else:
        election = _election(settings, for_lease)
        cluster = Cluster(
            connection,
            throttle=throttle,
            instance=settings.identity,
            may_write=lambda: election.is_leader,
            observe=metrics.count_write,
        )
    return ControlContext(
        settings=settings,
        cluster=cluster,
        registry=Registry(pod_permissions=settings.pod_permissions, has=settings.shard.has),
        election=election,
        metrics=metrics,
        heartbeat=Heartbeat(time.monotonic),
        monotonic=time.monotonic,
        wall=_utc_now,
    )


def _election(settings: OperatorSettings, connection: Connection) -> Election:
    return Election(
        connection,
        namespace=settings.lease_namespace,
        name=settings.shard.named(settings.lease_name),
        identity=settings.identity,
        settings=settings.lease,
        monotonic=time.monotonic,
        wall=_utc_now,
    )


async def _require_crd(cluster: Cluster) -> None:
    # kopf would wait for the kind without a word, and look healthy.
    if not await cluster.serves_crd():
        raise OperatorFailed("the VLLMService CRD is not installed: run `kubectl apply -f crds/` and restart")


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the operator's tasks, and the event that tells it to stop."""

    task: asyncio.Task[None]
    stop: asyncio.Event


async def _run_side_by_side(context: ControlContext, *, connection: Connection, fleet_loop: FleetLoop) -> None:
    stop, resign, watching = asyncio.Event(), asyncio.Event(), asyncio.Event()
    settings = context.settings
    lag = LoopLag(context.monotonic)
    probes = Probes(
        heartbeat=context.heartbeat,
        lag=lag,
        heartbeat_limit=settings.heartbeat_limit.total_seconds(),
        ready=lambda: context.registry.synced and watching.is_set() and not stop.is_set(),
        metrics=context.metrics,
        is_leader=lambda: context.election.is_leader,
    )
    async with asyncio.TaskGroup() as tasks:

        def start(name: str, work: Awaitable[None], ends: asyncio.Event) -> _Part:
            return _Part(tasks.create_task(_until(ends, name=name, work=work), name=name), ends)

        parts = [
            start("fleet loop", fleet_loop(context, stop), stop),
            start("sweep", _sweep(context, stop), stop),
            start("loop lag", sample_loop_lag(stop, monotonic=context.monotonic, report=lag.note), stop),
            start("election", context.election.run(resign), resign),
            start(
                "probes",
                serve(probes, listen_address=settings.listen_address, stop=resign, pages=_pages(context)),
                resign,
            ),
        ]

        async def shut_down() -> None:
            for event in (stop, resign):
                event.set()
                await _end([part.task for part in parts if part.stop is event])

        tasks.create_task(_watch(context, connection=connection, ready=watching, cleanup=shut_down), name="watches")


def _pages(context: ControlContext) -> Iterable[web.RouteDef]:
    """The routes of the web page; none while it is off."""
    if not context.settings.web:
        return ()
    return WebPages(
        services=context.registry.services.views,
        prices=Prices(catalogue=context.settings.catalogue),
        wall=context.wall,
        monotonic=context.monotonic,
    ).routes()


async def _watch(
    context: ControlContext, *, connection: Connection, ready: asyncio.Event, cleanup: Callable[[], Awaitable[None]]
) -> None:
    """Run kopf until a signal; then, in its clean-up, stop everything else."""
    namespaces = context.settings.namespaces
    try:
        await kopf.operator(
            registry=build_registry(context.registry, connection=connection, cleanup=cleanup),
            settings=build_settings(),
            clusterwide=not namespaces,
            namespaces=namespaces,
            ready_flag=ready,
        )
    except Exception as error:
        # kopf has logged which kind it was, with a traceback.
        why = f"a watch failed ({_in_one_line(error)})"
        raise OperatorFailed(f"{why}: check that the CRD is installed and the operator has its permissions") from error


def _sweep(context: ControlContext, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    return sweep_regularly(
        context.registry,
        context.cluster,
        namespaces=context.settings.namespaces,
        interval=context.settings.sweep_interval,
        report=context.metrics.swept.inc,
        stop=stop,
    )


async def _until(stop: asyncio.Event, *, name: str, work: Awaitable[None]) -> None:
    """Do the work, and treat an unexpected end as a failure: the operator must not run without one of its parts."""
    try:
        await work
    except Exception as error:
        logger.exception("operator component failed", extra={"component": name})
        raise OperatorFailed(f"{name}: {_in_one_line(error)}") from error
    if not stop.is_set():
        raise OperatorFailed(f"{name} stopped unexpectedly")


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    _, late = await asyncio.wait(tasks, timeout=STOP_WITHIN)
    for task in late:
        logger.warning(
            "component did not stop in time", extra={"component": task.get_name(), "timeout_seconds": STOP_WITHIN}
        )
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=STOP_WITHIN)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _in_one_line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _utc_now() -> datetime:
    return datetime.now(UTC)
