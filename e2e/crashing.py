"""The operator dies at writes that a test chooses, and is started again: once before the answer arrives, once after.

Apart from the scenes, which say at which writes; and from the proxy, which sees them.
Must not: know what a change is, or choose a write itself.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from e2e.api_proxy import ApiProxy, Write
from e2e.release import RELEASE
from e2e.side_by_side import Play

__all__ = ["LEASE", "Crashes"]

LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/{{namespace}}/leases/{RELEASE}"
"""Of the operator that leads, for `format`."""


@dataclass(slots=True)
class Crashes:
    """Ends the operator after each write that is due: before it learns that this was carried out, or after."""

    play: Play
    answered: bool
    """Whether it learns of it: then it ends before its next request, whatever that is."""
    due: Callable[[Write], bool]
    """Asked of every write, once and in order."""
    _restarts: list["asyncio.Task[None]"] = field(default_factory=list)
    _arguments: tuple[str, ...] = ()
    _doomed: bool = False
    _down: bool = False
    """From its death until it is started again. What it sent before is carried out still, and counts as its end too:
    the connection of a killed process looks open until the event loop has heard of the end."""

    @property
    def came(self) -> bool:
        """Whether the operator died at all."""
        return bool(self._restarts)

    def proxy(self) -> ApiProxy:
        """What the operator is to be started behind."""
        bed = self.play.stage.bed
        return ApiProxy(api_url=bed.api_url, ca_file=bed.ca_file, lose=self.after_a_write, refuse=self.before_a_request)

    def start_operator_behind(self, proxy: ApiProxy) -> None:
        """Start the operator so that its writes pass here."""
        self._arguments = ("--kubeconfig", str(proxy.kubeconfig(self.play.stage.kubeconfig)))
        self.play.stage.start_operator(*self._arguments)

    async def over(self) -> None:
        """Wait until the operator is up again after the last crash. Raises what went wrong with a restart."""
        await asyncio.gather(*self._restarts)

    def after_a_write(self, write: Write) -> bool:
        """Crash if the write is due; True when its answer gets lost with the operator."""
        if not self.due(write) or not write.heard or self._down:
            # Killed for another write, it died in the middle of this one, too.
            return False
        if self.answered:
            self._doomed = True
            return False
        self._crash()
        return True

    def before_a_request(self) -> bool:
        """Crash if the answer to a write that was due has just been given."""
        if not self._doomed:
            return False
        self._doomed = False
        self._crash()
        return True

    def _crash(self) -> None:
        self._down = True
        self.play.stage.kill_operator()
        self._restarts.append(asyncio.create_task(self._restart()))

    async def _restart(self) -> None:
        stage = self.play.stage
        # As if the 15 s of the dead leader's lease had passed: waiting for them each time would prove nothing more.
        answer = await stage.api.delete(LEASE.format(namespace=stage.namespace))
        answer.raise_for_status()
        self._down = False
        stage.start_operator(*self._arguments)
