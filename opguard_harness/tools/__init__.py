"""The tools, one module per subject. A tool is declared once, beside the function that carries it out."""
