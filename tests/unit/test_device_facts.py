"""What the contract says of a card, against a management library of our own; no card and no driver is needed."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from opguard_core.contract.compare import compare
from opguard_core.contract.spec import rule_of
from opguard_core.determinism.device import card_facts, device_facts, version_text
from opguard_core.determinism.nvml import LIBRARY_VARIABLE

SOURCE = Path(__file__).resolve().parents[1] / "support" / "fake_nvml.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")
BUS, UUID = "0000:17:00.0", "1234"
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler, to build a management library that knows a card")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("nvml") / "libfake-nvml.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    return path


@pytest.fixture
def asked(library, monkeypatch):
    """Asks for the facts of a kind of card, and sees to it that the library was let go."""
    monkeypatch.setenv(LIBRARY_VARIABLE, str(library))
    users = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "fake_users")

    def ask(kind="", uuid=UUID, bus=BUS):
        monkeypatch.setenv("FAKE_NVML", kind)
        _environment(kind)
        found = card_facts(uuid, bus)
        assert users.value == 0
        return found

    return ask


def _environment(kind):
    """The C library reads its own copy of the environment."""
    ctypes.CDLL(None).setenv(b"FAKE_NVML", kind.encode(), 1)


def reasons(facts):
    return {key: value["unknown"] for key, value in facts.items() if isinstance(value, dict) and set(value) == {"unknown"}}


def test_a_card_tells_driver_memory_errors_parts_and_who_may_use_it(asked):
    facts = asked()
    assert facts["device.driver"] == "580.159.04"
    assert facts["device.firmware"] == "96.00.A1"
    assert (facts["device.ecc.mode"], facts["device.mig"], facts["device.compute_mode"]) == ("on", "off", "exclusive process")
    assert facts["device.ecc.errors"] == {
        "corrected_since_loaded": 1 << 40,
        "corrected_ever": (1 << 40) + 1,
        "uncorrected_since_loaded": (1 << 40) + 10,
        "uncorrected_ever": (1 << 40) + 11,
    }


def test_what_an_old_driver_does_not_have_is_unknown_and_the_rest_is_there(asked):
    facts = asked()
    assert list(reasons(facts)) == ["device.ecc.remapped_rows"]
    assert "no nvmlDeviceGetRemappedRows" in reasons(facts)["device.ecc.remapped_rows"]


def test_a_card_without_error_correction_says_so(asked):
    assert "not supported by this card" in reasons(asked("plain"))["device.ecc.mode"]


def test_a_part_of_a_card_is_found_by_the_bus_of_the_card(asked):
    facts = asked("mig", uuid="MIG-9")
    assert (facts["device.mig"], facts["device.ecc.mode"]) == ("on", "on, off after a restart")


@pytest.mark.parametrize(
    ("kind", "uuid", "bus", "said"),
    [("nothing", UUID, BUS, "no driver"), ("", "other", "0000:00:00.0", "not found")],
)
def test_where_it_cannot_be_asked_every_fact_is_unknown_for_that_reason(asked, kind, uuid, bus, said):
    facts = asked(kind, uuid, bus)
    assert set(reasons(facts)) == set(facts)
    assert all(said in text for text in reasons(facts).values())


def test_without_the_library_the_facts_are_unknown_and_no_difference(monkeypatch):
    monkeypatch.setenv(LIBRARY_VARIABLE, "/nowhere/libnvidia-ml.so.1")
    facts = card_facts(UUID, BUS)
    assert set(reasons(facts)) == set(facts)
    assert compare({**facts, "late": "end"}, {**facts, "late": "end"}) == []


def made_up_torch(**properties):
    device = SimpleNamespace(
        name="NVIDIA H200",
        major=9,
        minor=0,
        uuid=UUID,
        multi_processor_count=132,
        total_memory=150 << 30,
        memory_clock_rate=3_201_000,
        memory_bus_width=6144,
        pci_domain_id=0,
        pci_bus_id=0x17,
        pci_device_id=0,
    )
    for name, value in properties.items():
        setattr(device, name, value) if value is not None else delattr(device, name)
    cuda = SimpleNamespace(
        get_device_properties=lambda index: device,
        current_device=lambda: 0,
        device_count=lambda: 1,
        nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
    )
    return SimpleNamespace(
        cuda=cuda,
        version=SimpleNamespace(cuda="99.0"),
        _C=SimpleNamespace(_cuda_getDriverVersion=lambda: 13000),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91900)),
    )


def test_a_whole_device_is_told_and_a_runtime_that_is_not_loaded_is_not_loaded_for_it(asked):
    asked()  # sets the kind
    facts = device_facts(made_up_torch())
    assert facts["device.name"] == "NVIDIA H200"
    assert (facts["device.capability"], facts["device.multiprocessors"], facts["device.pci"]) == ("9.0", 132, BUS)
    assert facts["device.memory_bytes_per_s"] == 2 * 3_201_000_000 * 6144 // 8
    assert (facts["device.driver"], facts["device.driver_api"], facts["torch.nccl"]) == ("580.159.04", "13.0", "2.28.9")
    assert "libcudart.so.99" in facts["torch.cuda_runtime"]["unknown"]


def test_an_old_torch_without_bus_numbers_finds_the_card_by_its_uuid(asked):
    asked()
    facts = device_facts(made_up_torch(pci_bus_id=None))
    assert set(facts["device.pci"]) == {"unknown"}
    assert facts["device.ecc.mode"] == "on"


def test_versions_are_written_as_people_do():
    assert [version_text(number) for number in (13000, 12080, 12010)] == ["13.0", "12.8", "12.1"]


def test_another_card_of_the_same_kind_is_cosmetic_and_another_kind_changes_arithmetic(asked):
    asked()
    first, second, third = (
        {**device_facts(made_up_torch(**change)), "late": "end"}
        for change in ({}, {"uuid": "77", "pci_bus_id": 0x18}, {"name": "NVIDIA H100", "multi_processor_count": 114})
    )
    assert {item.severity for item in compare(first, second)} <= {"cosmetic"}
    assert {item.key: item.severity for item in compare(first, third)} == {"device.name": "arithmetic", "device.multiprocessors": "order"}


def test_every_fact_of_a_device_has_a_rule_of_its_own(asked):
    asked()
    assert all(rule_of(key).why != rule_of("never.heard.of.it").why for key in device_facts(made_up_torch()))


@pytest.mark.parametrize(
    ("key", "severity"),
    [
        ("env.CUBLAS_WORKSPACE_CONFIG", "order"),
        ("env.CUBLASLT_WORKSPACE_SIZE", "order"),
        ("env.CUBLAS_EMULATE_SINGLE_PRECISION", "arithmetic"),
        ("env.CUBLASLT_LOG_LEVEL", "cosmetic"),
        ("env.NVIDIA_TF32_OVERRIDE", "arithmetic"),
        ("env.NCCL_ALGO", "order"),
        ("env.NCCL_PROTO", "order"),
        ("env.NCCL_MIN_NCHANNELS", "order"),
        ("env.NCCL_MAX_CTAS", "order"),
        ("env.NCCL_NVLS_ENABLE", "order"),
        ("env.NCCL_SOCKET_IFNAME", "environment"),
        ("flags.cuda.blas", "arithmetic"),
        ("flags.cuda.workspace", "order"),
        ("flags.cuda.matmul.fp16_accumulation", "arithmetic"),
        ("flags.sdpa.fa3", "arithmetic"),
        ("torch.cuda_runtime", "arithmetic"),
    ],
)
def test_settings_that_change_arithmetic_on_a_card_count_once_one_was_used(key, severity):
    used, unused = (
        ({key: value, "device.name": "H200", "late": "end"} for value in (1, 2)),
        ({key: value, "late": "end"} for value in (1, 2)),
    )
    assert [item.severity for item in compare(*used)] == [severity]
    if key.startswith(("env.", "flags.cuda")) and severity != "cosmetic":
        assert [item.severity for item in compare(*unused)] == ["environment"]
