"""Free TCP ports for the bed's servers.

Apart from the servers, because ports taken one by one could be the same.
"""

import random
import socket
from typing import Final

RANGE: Final = range(20_000, 32_000)
"""Below the kernel's range for outgoing connections: none of those takes a port between our look and its use."""


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that nobody on this machine listens on at this moment.

    From a random start, so that beds started at the same time do not choose alike.
    """
    found: list[int] = []
    for candidate in random.sample(RANGE, len(RANGE)):
        if len(found) == count:
            break
        if is_free(candidate):
            found.append(candidate)
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of every address."""
    with socket.socket() as listener:
        # As Go's servers do; connections of a former server that are still closing do not count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True
