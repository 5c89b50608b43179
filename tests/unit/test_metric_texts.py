"""The metrics of several workers as one text: each family together, every sample with its worker."""

from server.metrics import Metrics, merged


def counted(count: int) -> Metrics:
    metrics = Metrics()
    for _ in range(count):
        metrics.turn_ended("completed", "gpu", stream=False, duration_s=0.3, first_event_s=None)
    return metrics


def lines(text: bytes, name: str) -> list[str]:
    return [line for line in text.decode().splitlines() if line.startswith(name)]


def test_of_one_process_no_line_names_a_worker() -> None:
    text = counted(2).text()
    assert lines(text, "rejoinder_turns_total") == [
        'rejoinder_turns_total{mode="json",status="completed",upstream="gpu"} 2.0'
    ]
    assert b"worker" not in text


def test_families_of_several_stand_together() -> None:
    text = merged([counted(2).text(1), counted(3).text(2)])
    assert lines(text, "rejoinder_turns_total") == [
        'rejoinder_turns_total{mode="json",status="completed",upstream="gpu",worker="1"} 2.0',
        'rejoinder_turns_total{mode="json",status="completed",upstream="gpu",worker="2"} 3.0',
    ]
    kinds = lines(text, "# TYPE")
    assert len(kinds) == len(set(kinds))
    # Behind its kind come a family's samples, and nothing of another.
    family = ""
    for line in text.decode().splitlines():
        if line.startswith("# TYPE"):
            family = line.split()[2]
        elif not line.startswith("# HELP"):
            assert line.startswith(family)


def test_a_histogram_has_the_time_where_it_belongs() -> None:
    text = counted(1).text()
    buckets = lines(text, "rejoinder_turn_seconds_bucket")
    assert 'rejoinder_turn_seconds_bucket{le="0.25",mode="json",upstream="gpu"} 0.0' in buckets
    assert 'rejoinder_turn_seconds_bucket{le="0.5",mode="json",upstream="gpu"} 1.0' in buckets
    assert b"_created" not in text


def test_what_was_replayed_is_counted_by_action_and_rule() -> None:
    metrics = Metrics()
    metrics.turn_began(4, 900, [("kept", "message"), ("left_out", "empty"), ("kept", "message")])
    metrics.turn_began(0, 0, [("kept", "message")])
    assert lines(metrics.text(), "rejoinder_replayed_items_total") == [
        'rejoinder_replayed_items_total{action="kept",rule="message"} 3.0',
        'rejoinder_replayed_items_total{action="left_out",rule="empty"} 1.0',
    ]
