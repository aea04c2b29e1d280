"""python -m batchlab."""

from batchlab.cli import main

if __name__ == "__main__":
    main()
