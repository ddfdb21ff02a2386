"""`python -m transformer_cli` is `tx`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    if sys.platform == "win32":  # files, pipes and signals are those of Unix
        sys.stderr.write("error: tx runs on Linux and macOS; on Windows it runs in WSL: `wsl --install`\n")
        sys.exit(5)
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode and sys.executable:
        # Names and arguments are UTF-8 whatever the locale says, which Python decides once.
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    from transformer_cli.cli.signals import end_by_signals

    end_by_signals()  # before anything that takes time is imported

    from transformer_cli.environment import prepare

    prepare()

    from transformer_cli.cli.app import run
    from transformer_cli.cli.garbage import spare_libraries

    spare_libraries()

    run()


if __name__ == "__main__":
    # There `python -m` looks for modules first, and a file of the user's may have the name of any.
    try:
        if not sys.flags.safe_path and sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):
            del sys.path[0]
    except OSError:  # of a folder that is not there any more
        pass
    main()
