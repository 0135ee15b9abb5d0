"""Schedules: numbers over updates or epochs."""

import pytest

from espnet_sampled_rnnt.schedules import Schedule


def test_a_number_is_held_throughout():
    schedule = Schedule.parse("option", 7)
    assert schedule.is_constant
    assert [schedule.at(position) for position in (0, 1, 10**9)] == [7, 7, 7]


def test_null_counts_as_zero():
    assert Schedule.parse("option", None).at(5) == 0


def test_steps_hold_until_the_next_point():
    schedule = Schedule.parse("option", {"points": {0: 64, 100: 256, 300: 0}})
    assert not schedule.is_constant
    positions = (0, 99, 100, 299, 300, 5000)
    assert [schedule.at(p) for p in positions] == [64, 64, 256, 256, 0, 0]


def test_lines_go_straight_between_points_and_stay_behind_the_last():
    schedule = Schedule.parse(
        "option", {"points": {0: 0.0, 10: 1.0, 20: 0.5}, "interpolate": "linear"}
    )
    positions = (0, 5, 10, 15, 20, 99)
    assert [schedule.at(p) for p in positions] == [0.0, 0.5, 1.0, 0.75, 0.5, 0.5]


def test_positions_from_a_command_line_are_names():
    schedule = Schedule.parse("option", {"points": {"100": 2, "0": 1}})
    assert schedule.points == ((0, 1), (100, 2))


def test_units():
    schedule = Schedule.parse("option", {"points": {0: 1, 2: 3}, "unit": "epochs"})
    assert schedule.unit == "epochs"
    assert schedule.values == (1, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("many", "option is 'many'"),
        (True, "option is True"),
        ({}, "option.points is None"),
        ({"points": {}}, "option.points is {}"),
        ({"points": [1, 2]}, r"option.points is \[1, 2\]"),
        ({"points": {0: 1}, "units": "epochs"}, "option.units is not known"),
        ({"points": {0: 1}, "unit": "hours"}, "option.unit is 'hours'"),
        ({"points": {0: 1}, "interpolate": "cubic"}, "interpolate is 'cubic'"),
        ({"points": {5: 1}}, "option.points begins at 5"),
        ({"points": {-1: 1, 0: 2}}, "position -1"),
        ({"points": {0.5: 1}}, "position 0.5"),
        ({"points": {0: "x"}}, r"option.points\[0\] is 'x'"),
        ({"points": {0: float("inf")}}, r"option.points\[0\] is inf"),
        ({"points": {0: 10**400}}, r"option.points\[0\] is 10"),
        ({"points": {0: 1, "0": 2}}, "option.points has the position 0 twice"),
    ],
)
def test_a_bad_schedule_is_refused_by_name(value, message):
    with pytest.raises(ValueError, match=message):
        Schedule.parse("option", value)
