"""`python -I -S tied.py PARENT COMMAND...`: become COMMAND, which the kernel kills when process PARENT ends.

Apart from `processes`, because it runs in the child: a `preexec_fn` there would deadlock a parent that has threads.
Must not: import more than it needs; it stands before every start. The process id stays the same.
"""

import os
import sys

# Under -I the repository is not in the path, and nothing else of the caller's environment is wanted here.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from e2e import linux


def main() -> int:
    """Replace this process with the command; 127 when that is impossible."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    try:
        linux.die_with_parent(parent)
        os.execv(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main())
