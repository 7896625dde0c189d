"""Tests with the fixtures of pytest: pytest fixtures_example.py, with $FERROKUBE set."""

from test_example import Api


def test_each_test_has_its_own(control_plane):
    api = Api(control_plane)
    assert api("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})[0] == 201


def test_nothing_is_left_of_others(control_plane, session_control_plane):
    assert control_plane.url != session_control_plane.url
    assert Api(control_plane)("GET", "/api/v1/namespaces/shop")[0] == 404
    assert Api(session_control_plane)("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})[0] == 201


def test_one_of_the_session_is_kept(session_control_plane):
    assert Api(session_control_plane)("GET", "/api/v1/namespaces/shop")[0] == 200
