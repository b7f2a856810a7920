"""Why the test bed could not do what was asked: one line for a person, who can act on it without a traceback.

* BedError
  - BinariesError   a binary is missing and could not be built   -> install or fetch what the line names
  - StartError      a process of the bed died or stayed silent   -> read the log that the line names
  - CommandError    kubectl, helm or promtool refused            -> its own words
  - EngineError     no real engine, or it could not be installed -> install or name what the line says

Apart from the modules that raise them, so that the command lines catch one base class.
"""


class BedError(Exception):
    """The test bed cannot go on; the message is one line that says what to do."""


class BinariesError(BedError):
    """A binary of the test bed is missing and could not be built."""


class StartError(BedError):
    """A process of the test bed died at start, or was not ready in time."""


class CommandError(BedError):
    """A command against the bed failed; the message is what it wrote to stderr."""


class EngineError(BedError):
    """The real engine cannot be run or installed."""
