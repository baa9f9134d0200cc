"""Options and the environment."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fuselane import api, config, plugin
from fuselane.config import Options
from fuselane.errors import OptionError


def test_defaults_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSELANE_MIN_GAIN")
    assert config.options_from({}) == Options()
    assert config.options_from({"unroll": 2, "verify": True}) == Options(unroll=2, verify=True)


def test_environment_gives_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE_VECTOR_BITS", " 256 ")
    monkeypatch.setenv("FUSELANE_VERIFY", "yes")
    monkeypatch.setenv("FUSELANE_THREADS", "")
    monkeypatch.setenv("FUSELANE_MIN_GAIN", "1.5")
    assert config.from_environment() == Options(vector_bits=256, verify=True, min_gain=1.5)
    assert config.options_from({"vector_bits": None}) == Options(verify=True, min_gain=1.5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"unrol": 1}, "There is no option 'unrol'; options are bounds_checks, cache_mib, "),
        ({"vector_bits": 100}, "The option vector_bits has to be 128, 256 or 512."),
        ({"unroll": 3}, "The option unroll has to be 1, 2, 4, 8 or 16."),
        ({"unroll": True}, "The option unroll has to be a whole number."),
        ({"unroll": 2.0}, "The option unroll has to be a whole number."),
        ({"tile_lanes": -5}, "The option tile_lanes has to be a positive number."),
        ({"threads": "2"}, "The option threads has to be a whole number."),
        ({"min_gain": -0.1}, "The option min_gain has to be zero or more."),
        ({"min_gain": float("nan")}, "The option min_gain has to be zero or more."),
        ({"min_gain": float("inf")}, "The option min_gain has to be zero or more."),
        ({"min_gain": "2"}, "The option min_gain has to be a number."),
        ({"min_gain": True}, "The option min_gain has to be a number."),
        ({"cache_mib": -1}, "The option cache_mib has to be zero or more."),
        ({"cache_mib": None}, "The option cache_mib has to be a whole number."),
        ({"verify": 1}, "The option verify has to be True or False."),
    ],
)
def test_wrong_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        config.options_from(settings)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("name", "text"),
    [("UNROLL", "many"), ("MIN_GAIN", "few"), ("MIN_GAIN", "-1"), ("VERIFY", "maybe")],
)
def test_wrong_variables(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"FUSELANE_{name}", text)
    with pytest.raises(OptionError, match=f"The option {name.lower()} has to be"):
        config.from_environment()


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("", None), ("1", True), ("on", True), ("0", False), (" OFF ", False), ("false", False)],
)
def test_switch(text: str, meaning: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE", text)
    assert config.switch() is meaning


def test_files_beside_the_package_are_not_its_own() -> None:
    package = str(Path(config.__file__).parent)
    assert config.is_own_file(config.__file__)
    assert config.is_own_file(f"{package}/fusion/gpu/rules.py")
    assert not config.is_own_file(f"{package}_tools/main.py")
    assert not config.is_own_file("<stdin>")


def test_fingerprints_differ_by_every_option() -> None:
    base = Options()
    others = [
        dataclasses.replace(base, **change)
        for change in (
            {"vector_bits": 256},
            {"unroll": 1},
            {"tile_lanes": 64},
            {"threads": 1},
            {"min_gain": 2.0},
            {"cache_mib": 1},
            {"max_compile_s": 10.0},
            {"verify": True},
            {"verify_hlo": True},
            {"gpu": True},
            {"gpu_launch": "xla"},
            {"bounds_checks": True},
            {"repeat": True},
            {"optimise": False},
            {"fast_math": True},
            {"loops": False},
            {"fusion": "none"},
            {"tuned": True},
        )
    ]
    assert len(others) == len(dataclasses.fields(Options))
    assert len({options.fingerprint() for options in [base, *others]}) == len(others) + 1
    assert base.fingerprint() == Options().fingerprint()


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSELANE_CACHE_DIR", "~/here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.cache_dir() == tmp_path / "here"
    monkeypatch.delenv("FUSELANE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert config.cache_dir() == Path("/somewhere/fuselane")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert config.cache_dir() == tmp_path / ".cache" / "fuselane"


def test_cache_dir_of_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError

    monkeypatch.delenv("FUSELANE_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    assert config.cache_dir().parent == Path(tempfile.gettempdir())


@pytest.mark.parametrize(("text", "is_on"), [("", False), ("0", False), ("1", True)])
def test_plugin(text: str, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE", text)
    monkeypatch.setattr(api._switchboard, "was_set", False)
    plugin.initialize()
    assert api.is_enabled() is is_on


def test_plugin_warns_and_leaves_jax_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELANE", "maybe")
    with pytest.warns(UserWarning, match="could not be switched on: The variable FUSELANE"):
        plugin.initialize()
    assert not api.is_enabled()
