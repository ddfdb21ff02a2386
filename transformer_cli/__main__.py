"""`python -m transformer_cli` is `tx`."""

from __future__ import annotations


def main() -> None:
    from transformer_cli.cli.signals import end_by_signals

    end_by_signals()  # before anything that takes time is imported

    from transformer_cli.environment import prepare

    prepare()

    from transformer_cli.cli.app import run

    run()


if __name__ == "__main__":
    main()
