"""Fixtures of pytest, which loads this module by the package's entry point."""

import pytest

from . import ControlPlane


@pytest.fixture
def control_plane():
    """A control plane for this test alone."""
    with ControlPlane() as plane:
        yield plane


@pytest.fixture(scope="session")
def session_control_plane():
    """A control plane for all tests of the session."""
    with ControlPlane() as plane:
        yield plane
