"""`python -m fedbn`."""

if __name__ == "__main__":
    import sys

    if not sys.flags.safe_path:
        sys.path.pop(0)  # the current directory: a file there may be called as one of Python's

    from fedbn.cli.main import main

    main()
