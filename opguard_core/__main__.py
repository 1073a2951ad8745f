"""``python -m opguard_core run ...``, or the same with the path of this folder, where the package is not installed."""

from __future__ import annotations

import sys

if not __package__:  # started as a folder: make the package importable, and only it
    import importlib.util
    from pathlib import Path

    _folder = Path(__file__).absolute().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").absolute() != _folder]
    _spec = importlib.util.spec_from_file_location("opguard_core", _folder / "__init__.py", submodule_search_locations=[str(_folder)])
    assert _spec is not None
    assert _spec.loader is not None
    _package = importlib.util.module_from_spec(_spec)
    sys.modules["opguard_core"] = _package
    _spec.loader.exec_module(_package)

from opguard_core.launch.command import main

if __name__ == "__main__":
    sys.exit(main())
