"""Start of every action: puts the declared site-packages trees on the import path and hands over to hatch_epctx.

    python -I -S -B driver.py --site=FOLDER ... -- COMMAND ARGUMENT ...

A file of such arguments, one a line, may stand there as @FILE.

-I and -S: neither variables nor an environment of the machine's own have a say in what is imported.
"""

import os
import sys


def main() -> int:
    split = sys.argv.index("--")
    sites = []
    for argument in sys.argv[1:split]:
        if argument.startswith("@"):
            with open(argument[1:], encoding="utf-8") as stream:
                sites += [line[len("--site=") :] for line in stream.read().splitlines()]
        elif argument.startswith("--site="):
            sites.append(argument[len("--site=") :])
    sys.path[:0] = [os.path.abspath(site) for site in sites]
    try:
        from hatch_epctx.bazel.__main__ import main as run
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"epctx: error: the module {error.name} is in no site-packages tree of the toolchain; give "
            "epctx_toolchain(runtime = ...) the trees of hatch-epctx[build] and of all it needs\n"
        )
        return 4
    return run(sys.argv[split + 1 :])


if __name__ == "__main__":
    sys.exit(main())
