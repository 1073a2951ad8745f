"""Write the generated client configuration anew: ``python -m tests.support.clients``."""

from pathlib import Path

from opguard_harness.clients.shipped_files import generated_files

REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> None:
    """Write every generated file."""
    for name, text in generated_files().items():
        path = REPOSITORY / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
