"""Delta files: their content comes back, and invalid files are refused."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from services.weights import (
    DeltaReader,
    DeltaWriter,
    UnusableBase,
    UnusableDelta,
    WholeVersion,
    changes,
    tensor_checksum,
)
from services.weights.positions import pack, unpack
from tests.unit.weights.files import Weights, bits, save_delta, save_full

ROOT = Path(__file__).resolve().parents[3]


@given(st.sets(st.integers(0, 2000)), st.integers(0, 700))
@settings(max_examples=50, deadline=None)
def test_packed_positions_come_back(chosen: set[int], room: int) -> None:
    positions = np.array(sorted(chosen), np.int64)
    size = max(chosen, default=0) + 1 + room
    assert unpack(*pack(positions, size), size).tolist() == sorted(chosen)


def test_positions_of_the_documented_example() -> None:
    low, high = pack(np.array([3, 5, 300]), 600)
    assert (low.tolist(), high.tolist()) == ([3, 5, 44], [0b001011])


@pytest.mark.parametrize(
    ("low", "high", "reason"),
    [
        ([3, 5, 44], [0b001011, 0], "2 bytes for the blocks of 600 elements with 3 changes, 1"),
        ([3, 5, 44], [0b000011], "its blocks do not have 3 changes together"),
        ([3, 5, 44], [0b100011], "its blocks do not have 3 changes together"),
        ([5, 3, 44], [0b001011], "its positions do not rise"),
        ([5, 5, 44], [0b001011], "its positions do not rise"),
        ([3, 5, 88], [0b010011], "position 600 is beyond its 600 elements"),
    ],
)
def test_invalid_positions_are_refused(low: list[int], high: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        unpack(np.array(low, np.uint8), np.array(high, np.uint8), 600)


BASE: Weights = {
    "few": bits(np.linspace(-1, 1, 1500).reshape(3, 500)),
    "all": bits(np.zeros(7)),
    "none": bits(np.ones((2, 2))),
    "scalar": bits(np.array(2.0)),
    "empty": bits(np.zeros((0, 4))),
}


def changed(base: Weights) -> Weights:
    new = {name: values.copy() for name, values in base.items()}
    new["few"][1, [0, 17, 499]] ^= 1
    new["all"][:] = bits(np.arange(1, 8))
    new["scalar"][...] = bits(np.array(np.nan))
    return new


def test_a_delta_has_the_changes_and_all_checksums(tmp_path: Path) -> None:
    new = changed(BASE)
    save_delta(tmp_path / "d", BASE, new)
    with DeltaReader(tmp_path / "d") as delta:
        assert (delta.base, delta.tag) == ("a:1", "a:2")
        assert list(delta.tensors) == list(BASE)
        assert all(t.xxh3 == tensor_checksum(new[n]) for n, t in delta.tensors.items())
        patches = {patch.name: patch for patch in delta.patches()}
    assert list(patches) == ["few", "all", "scalar"]
    few = patches["few"]
    assert few.positions is not None
    assert (few.shape, few.positions.tolist()) == ((3, 500), [500, 517, 999])
    assert few.values.tolist() == new["few"].reshape(-1)[[500, 517, 999]].tolist()
    assert patches["all"].positions is None
    assert patches["all"].values.tolist() == new["all"].tolist()


def test_zero_and_minus_zero_differ_and_a_nan_equals_itself() -> None:
    old, new = bits(np.array([0.0, np.nan, 1.0])), bits(np.array([-0.0, np.nan, 1.0]))
    positions, values = changes(old, new)
    assert (positions.tolist(), values.tolist()) == ([0], [0x8000])


def whole(base: Path, *deltas: Path) -> Weights:
    """Return the version that a file and deltas make."""
    with ExitStack() as stack:
        version = WholeVersion(base, [stack.enter_context(DeltaReader(path)) for path in deltas])
        return {name: version.tensor(name) for name in version.shapes}


def equal(found: Weights, expected: Weights) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].shape == expected[name].shape and np.array_equal(found[name], expected[name])
        for name in found
    )


def test_a_whole_file_and_deltas_make_the_last_version(tmp_path: Path) -> None:
    second = changed(BASE)
    third = {name: values.copy() for name, values in second.items()}
    third["few"].reshape(-1)[::200] ^= 3
    third["none"][0, 1] = 0
    save_full(tmp_path / "1", BASE)
    save_delta(tmp_path / "d2", BASE, second)
    save_delta(tmp_path / "d3", second, third, "a:2", "a:3")
    assert equal(whole(tmp_path / "1"), BASE)
    assert equal(whole(tmp_path / "1", tmp_path / "d2"), second)
    assert equal(whole(tmp_path / "1", tmp_path / "d2", tmp_path / "d3"), third)

    with pytest.raises(UnusableDelta, match="d3 changes a:2, and not a:3"):
        whole(tmp_path / "1", tmp_path / "d3", tmp_path / "d3")
    with pytest.raises(UnusableBase, match=r"all of version a:3 is wrong: .*/1 is not version a:2"):
        whole(tmp_path / "1", tmp_path / "d3")


def test_a_base_with_other_tensors_is_refused(tmp_path: Path) -> None:
    base, delta = tmp_path / "1", tmp_path / "d"
    save_delta(delta, BASE, changed(BASE))
    others = {**BASE, "more": bits(np.ones(1))}
    turned = {**BASE, "few": BASE["few"].reshape(500, 3)}
    for weights, reason in ((others, "differ in 1 tensors: .'more'"), (turned, "has shape .3, 5")):
        save_full(base, weights)
        with pytest.raises(UnusableDelta, match=reason):
            whole(base, delta)
    save_file({"few": np.zeros(3, np.float32)}, base)
    with pytest.raises(UnusableBase, match="few is F32"):
        whole(base, delta)
    base.write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(UnusableBase, match="cannot read"):
        whole(base, delta)


Arrays = dict[str, NDArray[Any]]


def without(key: str) -> Callable[[Arrays, dict[str, str]], None]:
    def removed(arrays: Arrays, metadata: dict[str, str]) -> None:
        arrays.pop(key, None)
        metadata.pop(key, None)

    return removed


def tensors(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[..., None]:
    def changed(_: Arrays, metadata: dict[str, str]) -> None:
        listed = json.loads(metadata["tensors"])
        change(listed)
        metadata["tensors"] = json.dumps(listed)

    return changed


def array(name: str, value: NDArray[Any]) -> Callable[..., None]:
    return lambda arrays, _: arrays.update({name: value})


def said(key: str, value: str) -> Callable[..., None]:
    return lambda _, metadata: metadata.update({key: value})


U8, U16 = np.uint8, np.uint16


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (without("format"), "has format, version and dtype .None, '1', 'BF16'."),
        (said("version", "2"), "'2', 'BF16'.*this process reads"),
        (said("dtype", "F32"), "'F32'"),
        (without("base"), "lacks 'base' in its metadata"),
        (said("tag", "seven"), "'seven' is not a version tag"),
        (said("tensors", "[" * 9000), "unusable metadata"),
        (said("tensors", '[{"name": "few"}]'), "unusable metadata.*shape"),
        (tensors(lambda all: all.append(all[0])), "names tensor 'few' twice"),
        (tensors(lambda all: all[0].update(name="")), "names tensor '' twice or not at all"),
        (tensors(lambda all: all[0].update(shape=[-1, -1500])), "few has shape .-1, -1500."),
        (tensors(lambda all: all[0].update(shape=[1 << 41])), "few has shape"),
        (tensors(lambda all: all[0].update(shape=[2])), "few has 3 values for 2 elements"),
        (tensors(lambda all: all[0].update(values=-1)), "few has -1 values for 1500 elements"),
        (tensors(lambda all: all[0].update(shape=[9000])), "its tensors need .*'high': .'U8', .5"),
        (tensors(lambda all: all[1].update(shape=[8])), "its tensors need .*'low': .'U8', .10"),
        (tensors(lambda all: all.pop(0)), "its tensors need .*'values': .'U16', .8"),
        (tensors(lambda all: all[0].update(values=1500)), "its tensors need"),
        (array("more", np.zeros(3, U8)), "has the arrays .*'more'"),
        (without("high"), "its tensors need .*'high'"),
        (array("values", np.zeros(11, np.float32)), "has the arrays .*'values': .'F32'"),
        (array("low", np.zeros((3, 1), U8)), "has the arrays .*'low': .'U8', .3, 1"),
        (array("values", np.zeros(12, U16)), "has the arrays .*'values': .'U16', .12"),
        (array("high", np.zeros(2, U8)), "few: its blocks do not have 3 changes together"),
    ],
)
def test_an_invalid_delta_is_refused(
    tmp_path: Path, damage: Callable[[Arrays, dict[str, str]], None], reason: str
) -> None:
    path = tmp_path / "d"
    save_delta(path, BASE, changed(BASE))
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    damage(arrays, metadata)
    save_file(arrays, path, metadata=metadata)
    with pytest.raises(UnusableDelta, match=reason), DeltaReader(path) as delta:
        list(delta.patches())


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_flipped_bit_or_a_cut_never_makes_other_weights(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "flips"
    if not folder.exists():
        folder.mkdir()
        save_full(folder / "1", BASE)
        save_delta(folder / "whole", BASE, changed(BASE))
    content = bytearray((folder / "whole").read_bytes())
    place = data.draw(st.integers(0, 8 * len(content) - 1))
    if data.draw(st.booleans()):
        content[place // 8] ^= 1 << place % 8
    else:
        del content[place // 8 :]
    (folder / "d").write_bytes(content)
    try:
        found = whole(folder / "1", folder / "d")
    except (UnusableDelta, UnusableBase):
        return
    assert equal(found, changed(BASE))


def test_the_documented_program_reads_a_delta(tmp_path: Path) -> None:
    text = (ROOT / "docs/weights.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.S)
    base = {"w": np.zeros(600, np.uint16)}
    new = {"w": base["w"].copy()}
    new["w"][[3, 5, 300]] = bits(np.array([1.0, -1.0, 0.5]))
    save_delta(tmp_path / "d", base, new)
    done = subprocess.run(
        [sys.executable, "-", tmp_path / "d"],
        input=program,
        text=True,
        capture_output=True,
        check=True,
    )
    assert f"it prints `{done.stdout.strip()}`" in text


def test_a_writer_counts_what_it_holds(tmp_path: Path) -> None:
    writer, new = DeltaWriter("a:1", "a:2"), changed(BASE)
    for name, values in BASE.items():
        found = changes(values, new[name])
        writer.add(name, values.shape, "0" * 16, *found, new[name].reshape(-1))
    assert writer.changed == 3 + 7 + 1
    writer.write(tmp_path / "d")
    assert 0 < (tmp_path / "d").stat().st_size - writer.bytes < 500
