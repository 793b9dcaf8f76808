"""`python -m counterseal` is the `counterseal` command."""

from counterseal.cli import main

if __name__ == "__main__":
    main()
