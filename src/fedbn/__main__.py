"""`python -m fedbn`."""

from fedbn.cli.main import main

if __name__ == "__main__":
    main()
