"""The command line: parse, call, print. Results go to stdout, everything else to stderr."""

import sys

from batchlab.cli.main import cli
from batchlab.errors import BatchlabError, InputError


def main() -> None:
    """Entry point. Exit codes: 0 fine, 1 the answer is no, 2 usage or input error."""
    try:
        cli.main(prog_name="batchlab", standalone_mode=True)
    except InputError as error:
        print(f"batchlab: {error}", file=sys.stderr)
        sys.exit(2)
    except BatchlabError as error:
        print(f"batchlab: {error}", file=sys.stderr)
        sys.exit(1)
