"""What /proc says about a machine."""

import platform

from bench.machine import cpu_name, memory_gib


def test_the_processor_is_named_once_however_many_cores() -> None:
    text = "processor\t: 0\nmodel name\t: AMD EPYC 9R14\n\nprocessor\t: 1\nmodel name\t: other\n"
    assert cpu_name(text) == "AMD EPYC 9R14"


def test_a_processor_without_a_name_is_its_architecture() -> None:
    assert cpu_name("processor\t: 0\nBogoMIPS\t: 50.00\n") == platform.machine()


def test_memory_is_in_gib() -> None:
    assert memory_gib("MemTotal:       25165824 kB\nMemFree: 1 kB\n") == 24.0
    assert memory_gib("") is None
