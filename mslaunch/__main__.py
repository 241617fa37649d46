"""`python -m mslaunch`: the same as the command `mslaunch`."""

from mslaunch.cli import main

if __name__ == "__main__":
    main()
