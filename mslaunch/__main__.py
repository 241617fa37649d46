"""The command `mslaunch`, also as `python -m mslaunch`."""

from mslaunch import interrupts

interrupts.end_at_once()


def main() -> None:
    """Run the command line of this process."""
    from mslaunch.cli import main as run

    run()


if __name__ == "__main__":
    main()
