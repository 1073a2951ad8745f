"""Write the generated part of README.md anew: ``python -m tests.support.readme``."""

from pathlib import Path

from opguard_harness.registry import markdown_table

README = Path(__file__).resolve().parents[2] / "README.md"


def main() -> None:
    """Replace the tool table."""
    text = README.read_text("utf-8")
    before, rest = text.split("<!-- tools -->\n", 1)
    after = rest.split("<!-- /tools -->", 1)[1]
    README.write_text(f"{before}<!-- tools -->\n{markdown_table()}\n<!-- /tools -->{after}", "utf-8")


if __name__ == "__main__":
    main()
