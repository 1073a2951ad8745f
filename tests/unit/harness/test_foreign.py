"""Another distribution with our package names is recognised by its metadata, without importing anything."""

import importlib.metadata

from opguard_harness.doctor import probe


def install(folder, name, files):
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def owners(monkeypatch, folder):
    monkeypatch.setattr(
        importlib.metadata,
        "distributions",
        lambda: importlib.metadata.MetadataPathFinder.find_distributions(importlib.metadata.DistributionFinder.Context(path=[str(folder)])),
    )
    return probe.foreign_owners()


def test_a_peer_that_installs_our_package_is_found(tmp_path, monkeypatch):
    (tmp_path / "opguard_harness").mkdir()
    (tmp_path / "opguard_harness" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    install(tmp_path, "opguard", ["opguard_harness/__init__.py", "opguard_harness/cli.py"])
    assert owners(monkeypatch, tmp_path) == [{"name": "opguard", "version": "1.0", "folder": str(tmp_path)}]


def test_our_own_distribution_is_not_foreign(tmp_path, monkeypatch):
    install(tmp_path, "opguard-mcp", ["opguard_harness/__init__.py", "opguard_core/__init__.py"])
    assert owners(monkeypatch, tmp_path) == []


def test_a_package_that_only_sounds_like_us_is_not_foreign(tmp_path, monkeypatch):
    install(tmp_path, "opguard-plugin", ["opguard_plugin/__init__.py"])
    assert owners(monkeypatch, tmp_path) == []
