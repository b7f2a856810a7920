"""Why a metrics source gave no usable answer, split by what to do next.

None leaves `observation` in the operator: the snapshot turns each into a ProviderError reading and everything holds.

* SourceError
  - Unreachable     no HTTP answer (DNS, TLS, refused, timeout)      -> next tick
  - Overloaded      429, 5xx, query timed out                        -> next tick
  - Rejected        other 4xx: credentials or our query              -> tell the admin
    - Denied        401, 403, where that is told apart               -> say what to grant
  - Unusable        2xx, but partial (warnings) or not the schema    -> hold, show the first warning
  - Unreadable      a recording or exposition that cannot be parsed  -> tell the person who named the file
"""

__all__ = ["Denied", "Overloaded", "Rejected", "SourceError", "Unreachable", "Unreadable", "Unusable"]


class SourceError(Exception):
    """The base: `str()` is one line for people that says what failed and what to do."""


class Unreachable(SourceError):
    """No HTTP answer at all."""


class Overloaded(SourceError):
    """The source is there but cannot answer now."""


class Rejected(SourceError):
    """The source refuses us: credentials, path or query."""


class Denied(Rejected):
    """The source is there and does not let us in."""


class Unusable(SourceError):
    """An answer that must not be trusted: partial, or not what the API promises."""


class Unreadable(SourceError):
    """A file or page that is not what it claims to be."""
