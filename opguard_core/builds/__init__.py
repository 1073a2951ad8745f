"""Builds the C and C++ parts on first use, with the system's compiler, into a private cache.

Sits below everything that has a compiled part: the fingerprint's CPU twin, the GPU launch path, the native observer. A part is a
``Recipe``; ``obtain`` answers with the built file or with the reason why there is none, and never raises for want of a compiler, a
folder or a working build. Nothing is built when the package is installed.
"""

from opguard_core.builds.folder import private_folder
from opguard_core.builds.keeping import keep
from opguard_core.builds.obtaining import load_extension, obtain, prepare
from opguard_core.builds.recipe import Built, NotBuilt, Recipe
from opguard_core.builds.settings import python_recipe_parts, torch_recipe_parts
from opguard_core.builds.sources import cuda_folder

__all__ = [
    "Built",
    "NotBuilt",
    "Recipe",
    "cuda_folder",
    "keep",
    "load_extension",
    "obtain",
    "prepare",
    "private_folder",
    "python_recipe_parts",
    "torch_recipe_parts",
]
