"""What an outsider sees of one service, and what he remembers of it: the only input of every invariant.

Apart from the product, and in plain objects of the API: an invariant that read them with the operator's own models
would believe whatever those models believe. Values only, so that a check is a function of two moments and a past.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

Object: TypeAlias = Mapping[str, Any]

NOTHING: Final[Object] = {}
ENDINGS: Final = ("Succeeded", "RolledBack", "RollbackFailed", "Rejected", "Superseded", "Cancelled")
"""How a change may end; an Event about it has the reason `Change` and one of these words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One service at one moment; what nobody looked at is None."""

    service: Object
    """The VLLMService."""
    at: datetime | None = None
    """By the clock that the operator reads."""
    ready: int | None = None
    """Pods of its own Deployment that serve, of whatever configuration; those of a trial come on top."""
    runs: Object | None = None
    """The knobs that the Deployment asks its engines for, by the names of the API."""
    trials: Mapping[str, str] | None = None
    """Deployments that this service owns beside its own, and the id of the change that each says it exists for."""
    told: Mapping[str, int] | None = None
    """How many Events there are about endings, by reason."""
    settled: bool = False
    """The operator has had two undisturbed ticks: what it puts off to the next one must be done."""
    harmed: bool = False
    """Something outside takes pods away, or keeps them from starting: what is missing is not the operator's doing."""
    edited: bool = False
    """A person wrote this status by hand: what it tells of is compared with nothing that came before."""
    others: int = 0
    """Changes under way at other services."""
    most_at_once: int | None = None
    """How many changes the cluster allows at once; None: any number."""

    @property
    def spec(self) -> Object:
        """What the user wrote."""
        return self.service.get("spec") or NOTHING

    @property
    def status(self) -> Object:
        """What the operator wrote; empty while it has not looked."""
        return self.service.get("status") or NOTHING

    @property
    def generation(self) -> int:
        """Of the spec."""
        return int(self.service["metadata"].get("generation", 1))

    @property
    def change(self) -> Object | None:
        """The change under way."""
        return self.status.get("activeChange")

    @property
    def history(self) -> Sequence[Object]:
        """The changes that ended, newest last."""
        return self.status.get("history") or ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What came before the two moments, as far as an invariant asks for it."""

    specs: tuple[Object, ...] = ()
    """Every spec that the service ever had."""
    begun: frozenset[str] = frozenset()
    """The ids of all changes that were under way."""
    ended: Mapping[str, int] = field(default_factory=dict)
    """How many changes ended, by outcome."""
    filed: frozenset[str] = frozenset()
    """The ids of all changes that ever stood in the history."""
    failed_in: Mapping[str, Object] = field(default_factory=dict)
    """What an environment of the failure memory means: the spec's part of it, when it was first written."""
    tried_in: Object | None = None
    """The same of the change under way, by the spec that it was begun on or last kept under."""
    floor_held: bool = False
    """The change under way began with as many serving pods as the spec asks for."""
    harmed: bool = False
    """Something outside has taken pods away since the change under way began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Two sights of a service, one after the other, and what came before."""

    before: Seen | None
    after: Seen
    past: Past = field(default_factory=Past)

    @property
    def old(self) -> Object | None:
        """The change that was under way before."""
        return self.before.change if self.before is not None else None

    @property
    def new(self) -> Object | None:
        """The change that is under way now."""
        return self.after.change

    @property
    def began(self) -> Object | None:
        """The change that was not under way before."""
        return self.new if self.new is not None and (self.old is None or self.old["id"] != self.new["id"]) else None

    @property
    def over(self) -> Object | None:
        """The change that is no longer under way."""
        return self.old if self.old is not None and (self.new is None or self.new["id"] != self.old["id"]) else None

    @property
    def entry(self) -> Object | None:
        """What the history says of the change that is over."""
        if self.over is None:
            return None
        return next((each for each in self.after.history if each["id"] == self.over["id"]), None)

    @property
    def written(self) -> bool:
        """Whether the status is another one than before."""
        return self.before is None or self.before.status != self.after.status


def floor_of(spec: Object) -> int:
    """How many pods must serve for the spec to be served."""
    scaling = spec.get("scaling")
    return int(scaling["minReplicas"] if scaling else spec.get("replicas") or 0)


def environment_of(spec: Object) -> Object:
    """What a candidate fails in: elsewhere it may be tried again."""
    engine, model = spec.get("engine") or NOTHING, spec.get("model") or NOTHING
    return {
        "image": engine.get("image"),
        "args": tuple(engine.get("args") or ()),
        "model": (model.get("name"), model.get("revision")),
        "product": (spec.get("accelerator") or NOTHING).get("product"),
    }


def followed(moment: Moment) -> Past:
    """The past of the next moment."""
    after, past = moment.after, moment.past
    if not moment.written and moment.before is not None and moment.before.spec is after.spec:
        return past if not after.harmed else replace(past, harmed=True)
    new = [entry for entry in after.history if entry["id"] not in past.filed]
    ended = Counter(past.ended) + Counter(entry["outcome"] for entry in new)
    known = dict(past.failed_in)
    # What failed, failed in what it was tried in, whatever the spec says by now.
    where = past.tried_in if moment.over is not None and past.tried_in is not None else environment_of(after.spec)
    for entry in after.status.get("failureMemory") or ():
        known.setdefault(entry.get("environment", ""), where)
    kept = moment.old is not None and moment.new is not None and moment.old["generation"] == moment.new["generation"]
    began = moment.began is not None
    same_spec = moment.before is not None and moment.before.spec == after.spec
    enough = after.ready is not None and after.ready >= floor_of(after.spec)
    return Past(
        specs=past.specs if after.spec in past.specs else (*past.specs, after.spec),
        begun=past.begun | ({after.change["id"]} if after.change else set()),
        ended=ended,
        filed=past.filed | {entry["id"] for entry in new},
        failed_in=known,
        tried_in=past.tried_in if moment.new is None or kept else environment_of(after.spec),
        floor_held=enough if began else past.floor_held and same_spec,
        harmed=after.harmed if began else past.harmed or after.harmed,
    )
