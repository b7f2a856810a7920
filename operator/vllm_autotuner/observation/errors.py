"""Errors of a metrics source, one class per reaction.

None of them leaves `observation` in the operator: the snapshot records it as a provider error, and the operator holds.

* SourceError
  - Unreachable     no HTTP answer (DNS, TLS, refused, timeout)      -> next tick
    - TimedOut      no answer in time                                -> next tick
  - Overloaded      429, 5xx, query timed out                        -> next tick
  - Rejected        other 4xx: credentials or our query              -> report to the administrator
    - UnusableFile  a file of credentials or certificates            -> repair the file
    - Denied        403, where it is distinguished                   -> report what to grant
      - NotAccepted 401, where it is distinguished                   -> report which credentials to give
  - Unusable        2xx, but partial (warnings) or not the schema    -> hold, show the first warning
    - TooLarge      more than is read of any answer                  -> ask for less
  - Unreadable      a recording or exposition that cannot be parsed  -> report to the user
"""

__all__ = [
    "Denied",
    "NotAccepted",
    "Overloaded",
    "Rejected",
    "SourceError",
    "TimedOut",
    "TooLarge",
    "Unreachable",
    "Unreadable",
    "Unusable",
    "UnusableFile",
]


class SourceError(Exception):
    """Base class; `str()` is one line that says what failed and what to do.

    `large`: the namespaces whose series may be the cause, because they took most of what had arrived by then; empty
    when no namespace stands out.
    """

    def __init__(self, message: str = "", *, large: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.large = large


class Unreachable(SourceError):
    """No HTTP answer at all."""


class TimedOut(Unreachable):
    """Not answered in time; the server may be there and answer the next request."""


class Overloaded(SourceError):
    """The source is reachable but cannot answer now."""


class Rejected(SourceError):
    """The source refuses the request: credentials, path or query."""


class UnusableFile(Rejected):
    """A file with a credential or a certificate cannot be read, or is none."""


class Denied(Rejected):
    """The source is reachable but denies access."""


class NotAccepted(Denied):
    """The source does not take the credentials at all: none, wrong or expired ones."""


class Unusable(SourceError):
    """An answer that must not be used: partial, or not in the format of the API."""


class TooLarge(Unusable):
    """An answer that does not end."""


class Unreadable(SourceError):
    """A file or page that is not in the expected format."""
